"""The root-mean-square norm and the layer norm in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor


def statistics_dtype(x: Tensor) -> torch.dtype:
    """Return what the statistics of x's rows are computed and saved in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _formula_dtype(x: Tensor, eps: float) -> torch.dtype:
    """Return what the formula is computed in: the dtype of the statistics, or fp64 for an eps that
    would be Inf there or lose digits.
    """
    dtype = statistics_dtype(x)
    if not isinstance(eps, float) or eps == 0.0:  # a symbolic one would guard on its value
        return dtype
    info = torch.finfo(dtype)
    return dtype if info.tiny <= abs(eps) <= info.max else torch.float64


def normalised(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    """Return the norm of x times weight_offset + weight, open to autograd, vmap and jvp.

    The weight may be any that broadcasts. Rows are scaled by a power of two first, so that no
    square overflows; the scale cancels.
    """
    h = x.to(_formula_dtype(x, eps))
    if x.shape[-1] == 0:
        return h.to(x.dtype) if weight is None else (h * weight).to(x.dtype)
    with torch.no_grad():
        largest = torch.nan_to_num(h.detach().abs().amax(-1, keepdim=True), 1.0, 1.0, 1.0)
        # Where eps outweighs the row, it is eps that must stay in range.
        least = torch.sym_min(abs(eps) ** 0.5, torch.finfo(h.dtype).max)
        exponent = torch.frexp(largest.clamp(min=least)).exponent
        limit = 1022 if h.dtype == torch.float64 else 126
        scale = torch.exp2(-exponent.clamp(-limit, limit).to(h.dtype))
    h = h * scale
    y: Tensor = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + (eps * scale) * scale)
    if weight is not None:
        y = y * (weight_offset + weight.to(h.dtype))
    return y.to(x.dtype)


def layer_normalised(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return the layer norm, whose parameters may be any that broadcast: the root-mean-square one
    of x - mean.

    The mean is taken twice: a large one's rounding is found as the mean of what it leaves.
    """
    h = x.to(statistics_dtype(x))
    for _ in range(2):
        h = h - h.mean(-1, keepdim=True)
    y = normalised(h, weight, eps)
    return (y if bias is None else y + bias).to(x.dtype)
