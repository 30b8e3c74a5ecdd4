"""The pointwise chain as the study writes it, in plain torch operations."""

import torch
from torch import Tensor


def pointwise_chain(x: Tensor) -> Tensor:
    """Return max(x * cos(x), cos(x)) + x * cos(x)."""
    y = torch.cos(x)
    x = x * y
    y = torch.max(x, y)
    return x + y
