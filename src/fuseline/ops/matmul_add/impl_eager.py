"""matmul_add as a model writes it."""

import torch
from torch import Tensor


def matmul_add(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    """Return a @ b + bias."""
    return torch.matmul(a, b) + bias
