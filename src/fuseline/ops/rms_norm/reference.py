"""The oracle: RMSNorm in fp64 (torch) and in extended precision (numpy). Never a fallback."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    """Compute y = x * rsqrt(mean(x^2) + eps) * (weight_offset +
    weight) for fp64 inputs, differentiable.
    """
    if weight is None and weight_offset != 0.0:
        raise ValueError(f"an offset of {weight_offset} to no weight")
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * (weight_offset + weight)


def longdouble(
    direction: str, dy: Any, x: Any, weight: Any, eps: float, weight_offset: float = 0.0
) -> tuple[Any, ...]:
    """Return the outputs ("fwd") or gradients of x and weight
    ("bwd") from numpy.longdouble arrays.
    """
    rstd = 1 / ((x * x).mean(-1, keepdims=True) + eps) ** 0.5
    xhat = x * rstd
    factor = 1 if weight is None else weight_offset + weight
    if direction == "fwd":
        return (xhat * factor,)
    g = dy * factor
    dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdims=True))
    if weight is None:
        return (dx,)
    return dx, (dy * xhat).reshape(-1, x.shape[-1]).sum(0)
