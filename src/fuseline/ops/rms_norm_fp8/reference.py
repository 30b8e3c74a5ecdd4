"""The oracle: the value that is to be rounded, in fp64. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.primitives import fp8_oracle


def rms_norm_fp8(x: Tensor, weight: Tensor | None, scale: Tensor, eps: float) -> Tensor:
    """Return x * rsqrt(mean(x^2) + eps) * weight / scale between -448 and 448, for fp64 inputs.

    Not rounded: the nearest e4m3 value is the one within half an ULP of it.
    """
    v = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        v = v * weight
    return fp8_oracle.quotient(v, scale.reshape(()))
