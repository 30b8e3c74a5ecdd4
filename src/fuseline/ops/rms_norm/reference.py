"""The oracle: RMSNorm in fp64 (torch) and in extended precision (numpy). Never a fallback."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """y = x * rsqrt(mean(x^2) + eps) * weight for fp64 inputs, differentiable."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def longdouble(direction: str, dy: Any, x: Any, weight: Any, eps: float) -> tuple[Any, ...]:
    """Outputs ("fwd") or gradients of x and weight ("bwd") from numpy.longdouble arrays."""
    rstd = 1 / ((x * x).mean(-1, keepdims=True) + eps) ** 0.5
    xhat = x * rstd
    if direction == "fwd":
        return (xhat if weight is None else xhat * weight,)
    g = dy if weight is None else dy * weight
    dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdims=True))
    if weight is None:
        return (dx,)
    return dx, (dy * xhat).reshape(-1, x.shape[-1]).sum(0)
