"""matmul_add_gelu as a model writes it."""

import torch
import torch.nn.functional as F
from torch import Tensor


def matmul_add_gelu(a: Tensor, b: Tensor, bias: Tensor, approximate: str = "tanh") -> Tensor:
    """Return gelu(a @ b + bias)."""
    h = torch.matmul(a, b)
    return F.gelu(h + bias.to(h.dtype), approximate=approximate)  # under autocast, as torch.addmm
