"""A tensor times a number that lies on the device, rounded once to another dtype."""

from __future__ import annotations

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.rows import divide_up

_BLOCK, _WARPS = 4096, 8


@triton.jit(do_not_specialize=["packs"])
def _kernel(x_ptr, scale_ptr, out_ptr, packs, VEC: tl.constexpr, BLOCK: tl.constexpr):
    """Process BLOCK of packs * VEC elements: out = x * scale in scale's dtype."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < tl.cast(packs, tl.int64) * VEC
    scale = tl.load(scale_ptr)
    x = tl.load(x_ptr + at, mask, other=0.0).to(scale.dtype)
    tl.store(out_ptr + at, (x * scale).to(out_ptr.dtype.element_ty), mask)


def scaled(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x * scale of a dtype: x contiguous, scale of one element and of float32 or float64.

    Torch's kernel of two dtypes takes 2.3 ms on an H100 for 3.15 GB of fp32 to bf16, which memory
    moves in 1.0.
    """
    out = x.new_empty(x.shape, dtype=dtype)
    if x.numel():
        grid = (divide_up(x.numel(), _BLOCK), 1, 1)
        vec = gcd(x.numel(), 16)
        meta = {"VEC": vec, "BLOCK": _BLOCK, "num_warps": _WARPS}
        launch(_kernel, grid, (x, scale, out, x.numel() // vec), meta)
    return out
