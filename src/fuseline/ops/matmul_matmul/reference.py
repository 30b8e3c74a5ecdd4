"""The oracle: the formula in fp64. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor


def matmul_matmul(x: Tensor, w1: Tensor, w2: Tensor, activation: str | None = None) -> Tensor:
    """Return activation(x @ w1) @ w2 for fp64 inputs."""
    h = torch.matmul(x, w1)
    return torch.matmul(h if activation is None else torch.relu(h), w2)
