"""The double softmax as the study writes it, over one dimension."""

import torch
from torch import Tensor


def double_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return torch.softmax, twice."""
    return torch.softmax(torch.softmax(x, dim), dim)
