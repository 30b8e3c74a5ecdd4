"""The oracle: what is to be rounded, in fp64. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.primitives import fp8_oracle


def layer_norm_fp8(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, scale: Tensor, eps: float
) -> Tensor:
    """Return v / scale, v = (x - mean) * rsqrt(var + eps) * weight + bias, for fp64 inputs."""
    h = x - x.mean(-1, keepdim=True)
    v = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    v = v if weight is None else v * weight
    v = v if bias is None else v + bias
    return fp8_oracle.quotient(v, scale.reshape(()))
