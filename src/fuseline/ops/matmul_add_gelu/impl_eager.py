"""matmul_add_gelu as a model writes it."""

import torch
import torch.nn.functional as F
from torch import Tensor


def matmul_add_gelu(a: Tensor, b: Tensor, bias: Tensor, approximate: str = "tanh") -> Tensor:
    """Return gelu(a @ b + bias)."""
    return F.gelu(torch.matmul(a, b) + bias, approximate=approximate)
