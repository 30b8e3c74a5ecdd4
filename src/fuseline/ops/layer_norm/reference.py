"""The oracle: layer norm in fp64 (torch) and in extended precision (numpy). Never a fallback."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Compute y = (x - mean) * rsqrt(var + eps) * weight + bias for fp64 inputs, differentiable."""
    h = x - x.mean(-1, keepdim=True)
    y = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def longdouble(
    direction: str, dy: Any, x: Any, weight: Any, bias: Any, eps: float
) -> tuple[Any, ...]:
    """Return the outputs ("fwd") or gradients of x, weight, bias
    ("bwd") from numpy.longdouble arrays.
    """
    h = x - x.mean(-1, keepdims=True)
    rstd = 1 / ((h * h).mean(-1, keepdims=True) + eps) ** 0.5
    xhat = h * rstd
    if direction == "fwd":
        y = xhat if weight is None else xhat * weight
        return (y if bias is None else y + bias,)
    g = dy if weight is None else dy * weight
    c, d = (t.mean(-1, keepdims=True) for t in (g, g * xhat))
    n = x.shape[-1]
    return (
        rstd * (g - c - xhat * d),
        None if weight is None else (dy * xhat).reshape(-1, n).sum(0),
        None if bias is None else dy.reshape(-1, n).sum(0),
    )
