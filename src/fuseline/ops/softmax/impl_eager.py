"""The softmax as torch computes it."""

import torch
from torch import Tensor


def softmax(x: Tensor) -> Tensor:
    """torch.softmax over the last dimension."""
    return torch.softmax(x, -1)
