"""The oracle, in fp64 (torch) and in extended precision (numpy). Never a fallback.

The sum is exact here: the rounding of new_residual is part of an implementation's error, in y too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Return h * rsqrt(mean(h^2) + eps) * weight and h = x + residual, for fp64 inputs."""
    h = x + residual
    y = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight, h


def longdouble(
    direction: str, dys: Any, x: Any, residual: Any, weight: Any, eps: float
) -> tuple[Any, ...]:
    """Return the outputs ("fwd") or gradients of x, residual and
    weight, from numpy.longdouble arrays.
    """
    h = x + residual
    rstd = 1 / ((h * h).mean(-1, keepdims=True) + eps) ** 0.5
    hhat = h * rstd
    if direction == "fwd":
        return (hhat if weight is None else hhat * weight), h
    dy, dh = dys
    g = dy if weight is None else dy * weight
    dx = rstd * (g - hhat * (g * hhat).mean(-1, keepdims=True)) + dh
    if weight is None:
        return dx, dx
    return dx, dx, (dy * hhat).reshape(-1, x.shape[-1]).sum(0)
