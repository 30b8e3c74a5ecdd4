"""Layer norm, of which a solution has weights to keep and rows to leave out."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x):
        return torch.relu(self.norm(x))


def get_inputs():
    return [torch.randn(256, 512)]


def get_init_inputs():
    return [512]
