"""The norm chain as the study writes it, in plain torch operations."""

import torch
from torch import Tensor


def norm_chain(x: Tensor) -> Tensor:
    """Compute x *= sum(x, -1), three times."""
    x = x * torch.sum(x, -1, keepdim=True)
    x = x * torch.sum(x, -1, keepdim=True)
    return x * torch.sum(x, -1, keepdim=True)
