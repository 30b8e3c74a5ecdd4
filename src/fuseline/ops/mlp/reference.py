"""The oracle: the formula in fp64. Never a fallback."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def mlp(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, activation: str = "gelu"
) -> Tensor:
    """Return activation(x @ w1 + b1) @ w2 + b2 for fp64 inputs."""
    h = torch.matmul(x, w1) + b1
    approximate = {"gelu": "tanh", "gelu_none": "none"}
    middle = (
        torch.relu(h) if activation == "relu" else F.gelu(h, approximate=approximate[activation])
    )
    return torch.matmul(middle, w2) + b2
