"""The addition and RMSNorm as a model writes them, in plain torch operations."""

from typing import Optional, Tuple  # noqa: UP035 (TorchScript)

import torch
from torch import Tensor


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Optional[Tensor],  # noqa: UP045 (TorchScript)
    eps: float,
) -> Tuple[Tensor, Tensor]:  # noqa: UP006 (TorchScript)
    """Return h = x + residual in their dtype; h * rsqrt(mean(h^2) + eps) * weight, and h."""
    new_residual = x + residual
    h = new_residual if x.dtype == torch.float64 else new_residual.to(torch.float32)
    y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight
    return y.to(x.dtype), new_residual
