"""The double softmax as the study writes it, over the last dimension."""

import torch
from torch import Tensor


def double_softmax(x: Tensor) -> Tensor:
    """torch.softmax, twice."""
    return torch.softmax(torch.softmax(x, -1), -1)
