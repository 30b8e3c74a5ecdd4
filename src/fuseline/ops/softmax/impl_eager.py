"""The softmax as torch computes it."""

import torch
from torch import Tensor


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return torch.softmax over one dimension."""
    return torch.softmax(x, dim)
