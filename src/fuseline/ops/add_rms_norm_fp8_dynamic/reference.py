"""The oracle: what is to be rounded, and the scales, in fp64. Never a fallback.

The sum is exact here: the rounding of new_residual is part of an implementation's error, in y and
the scales too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.primitives import fp8_oracle


def add_rms_norm_fp8_dynamic(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    block: int | None,
    scale_ub: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return v / scale, v = s * rsqrt(mean(s^2) + eps) * weight, scale, and s = x + residual."""
    s = x + residual
    v = s * torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
    return *fp8_oracle.by_blocks(v if weight is None else v * weight, block, scale_ub), s
