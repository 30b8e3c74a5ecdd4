"""The oracle: what is to be rounded, and the scales, in fp64. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.primitives import fp8_oracle


def layer_norm_fp8_dynamic(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    block: int | None,
    scale_ub: float | None,
) -> tuple[Tensor, Tensor]:
    """Return v / scale, v = (x - mean) * rsqrt(var + eps) * weight + bias, and scale."""
    h = x - x.mean(-1, keepdim=True)
    v = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    v = v if weight is None else v * weight
    v = v if bias is None else v + bias
    return fp8_oracle.by_blocks(v, block, scale_ub)
