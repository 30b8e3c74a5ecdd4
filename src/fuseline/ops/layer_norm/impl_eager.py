"""Layer norm as a model writes it, in plain torch operations: the yardstick of the tables."""

from typing import Optional

import torch
from torch import Tensor


def layer_norm(
    x: Tensor,
    weight: Optional[Tensor],  # noqa: UP045 (TorchScript)
    bias: Optional[Tensor],  # noqa: UP045
    eps: float,
) -> Tensor:
    """Compute y = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias, fp32 inside for half types.

    y has x's dtype.
    """
    h = x if x.dtype == torch.float64 else x.to(torch.float32)
    h = h - h.mean(-1, keepdim=True)
    y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y.to(x.dtype)
