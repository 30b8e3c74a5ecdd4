"""Attention with a causal mask, which get_inputs gives as a constant."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + mask
        return torch.softmax(scores, -1) @ v


def get_inputs():
    mask = torch.full((64, 64), float("-inf")).triu(1)
    return [*torch.randn(3, 4, 64, 32), mask]
