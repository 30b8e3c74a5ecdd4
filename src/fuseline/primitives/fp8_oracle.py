"""Quantisation to e4m3 for the oracles: what is to be rounded, in fp64. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.primitives.fp8 import LEAST_SCALE, MOST


def quotient(v: Tensor, scale: Tensor) -> Tensor:
    """Return v / scale between -448 and 448, for fp64 inputs.

    Not rounded: the nearest e4m3 value is the one within half an ULP of it.
    """
    return (v / scale).clamp(-MOST, MOST)


def by_blocks(v: Tensor, block: int | None, scale_ub: float | None) -> tuple[Tensor, Tensor]:
    """Return the quotients of v's blocks and their scales, amax / 448, for fp64 v."""
    n = v.shape[-1]
    parts = v.split(n if block is None else block, -1) if n or block is None else ()
    amaxes = [p.abs().amax(-1) if n else v.new_zeros(v.shape[:-1]) for p in parts]
    amax = torch.stack(amaxes, -1) if parts else v.new_zeros((*v.shape[:-1], 0))
    if scale_ub is not None:
        amax = amax.clamp(max=scale_ub)
    scale = (amax / MOST).clamp(min=LEAST_SCALE)
    each = scale if block is None else scale.repeat_interleave(block, -1)[..., :n]
    return quotient(v, each), scale
