"""The logarithm of the softmax as torch computes it."""

import torch
from torch import Tensor


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return torch.log_softmax over one dimension."""
    return torch.log_softmax(x, dim)
