"""matmul_add as a model writes it."""

import torch
from torch import Tensor


def matmul_add(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    """Return a @ b + bias."""
    h = torch.matmul(a, b)
    return h + bias.to(h.dtype)  # under autocast, as torch.addmm
