"""The softmax's gradient in plain torch operations."""

import torch
from torch import Tensor


def softmax_backward(dy: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """Return y * (dy - sum(dy * y)) over one dimension."""
    return y * (dy - torch.sum(dy * y, dim, keepdim=True))
