"""ReLU of positive numbers, whose mean hardly moves: inputs that ask for nothing."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x * 2).mean(-1)


def get_inputs():
    return [torch.rand(64, 4096)]
