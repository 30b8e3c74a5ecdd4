"""The oracle: what is to be rounded, and the scales, in fp64. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.primitives import fp8_oracle


def rms_norm_fp8_dynamic(
    x: Tensor, weight: Tensor | None, eps: float, block: int | None, scale_ub: float | None
) -> tuple[Tensor, Tensor]:
    """Return v / scale, v = x * rsqrt(mean(x^2) + eps) * weight, and scale, for fp64 inputs."""
    v = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return fp8_oracle.by_blocks(v if weight is None else v * weight, block, scale_ub)
