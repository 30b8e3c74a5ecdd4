"""The largest element of each row and its place: two results, one of integers."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, step):
        found = (x * step).max(-1)
        return found.values, found.indices


def get_inputs():
    return [torch.rand(512, 700), 3]
