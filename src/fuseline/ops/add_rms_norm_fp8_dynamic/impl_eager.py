"""The addition, RMSNorm and the quantisation of its result, in plain torch operations."""

from typing import Optional, Tuple  # noqa: UP035 (TorchScript)

import torch
from torch import Tensor

from fuseline.primitives.fp8 import quantised


def add_rms_norm_fp8_dynamic(
    x: Tensor,
    residual: Tensor,
    weight: Optional[Tensor],  # noqa: UP045 (TorchScript)
    eps: float,
    block: Optional[int],  # noqa: UP045
    scale_ub: Optional[float],  # noqa: UP045
) -> Tuple[Tensor, Tensor, Tensor]:  # noqa: UP006 (TorchScript)
    """Return the norm of s = x + residual in their dtype, quantised, the scales, and s."""
    new_residual = x + residual
    h = new_residual.to(torch.float32)
    v = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        v = v * weight
    y, scale = quantised(v, block, scale_ub)
    return y, scale, new_residual
