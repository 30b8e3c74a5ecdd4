"""A product of matrices that get_inputs draws from a generator of its own: always the same."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    drawn = torch.Generator().manual_seed(3)
    return [torch.rand(128, 128, generator=drawn), torch.ones(128, 128)]
