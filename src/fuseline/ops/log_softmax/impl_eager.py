"""The logarithm of the softmax as torch computes it."""

import torch
from torch import Tensor


def log_softmax(x: Tensor) -> Tensor:
    """torch.log_softmax over the last dimension."""
    return torch.log_softmax(x, -1)
