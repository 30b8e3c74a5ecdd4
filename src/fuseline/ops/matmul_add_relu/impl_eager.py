"""matmul_add_relu as a model writes it."""

import torch
from torch import Tensor


def matmul_add_relu(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    """Return max(a @ b + bias, 0)."""
    h = torch.matmul(a, b)
    return torch.relu(h + bias.to(h.dtype))  # under autocast, as torch.addmm
