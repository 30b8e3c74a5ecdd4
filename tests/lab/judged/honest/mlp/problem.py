"""Two linear layers with GELU between them."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(n, hidden), nn.Linear(hidden, n)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


def get_inputs():
    return [torch.randn(64, 128)]


def get_init_inputs():
    return [128, 512]
