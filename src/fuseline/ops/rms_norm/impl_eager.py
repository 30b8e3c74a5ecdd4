"""RMSNorm as a model writes it, in plain torch operations: the yardstick of the tables."""

from typing import Optional

import torch
from torch import Tensor


def rms_norm(
    x: Tensor,
    weight: Optional[Tensor],  # noqa: UP045 (TorchScript)
    eps: float,
    weight_offset: float = 0.0,
) -> Tensor:
    """Compute y = x * rsqrt(mean(x^2) + eps) * (weight_offset +
    weight), fp32 inside for half types.

    y has x's dtype.
    """
    h = x if x.dtype == torch.float64 else x.to(torch.float32)
    y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        if weight_offset != 0.0:
            weight = weight_offset + weight.to(h.dtype)
        y = y * weight
    return y.to(x.dtype)
