"""RMSNorm quantised to e4m3 in Triton: y = x * rsqrt(mean(x^2) + eps) * weight / scale.

Rows that fit the registers of one program are read once; longer rows in blocks, twice.
e4m3 is made of fp32 by integer operations, so that any GPU and the interpreter round alike.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.rms import divide, float64_of, in_range, inverse_sqrt
from fuseline.primitives.triton.rows import divide_up, halves, power_of_2, vec, whole_meta

_COUNTS = ["n_rows", "n_cols", "x_stride", "eps_high", "eps_low"]
# Not measured on a GPU yet: rows in registers up to WHOLE elements, SIZE elements a program.
_WHOLE, _SIZE, _WARPS = 16384, 4096, 8


@triton.jit
def _e4m3(v):
    """Return the bits of the e4m3 value nearest to an fp32 one, 448 for what is larger."""
    bits = v.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    capped = tl.minimum(magnitude, 0x43E00000)
    normal = (capped - 0x3C000000 + 0x7FFFF + ((capped >> 20) & 1)) >> 20
    # Added to 2^14, whose last bit is the least subnormal, the sum is rounded by the processor.
    subnormal = (capped.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True)
    finite = tl.where(capped < 0x3C800000, subnormal - 0x46800000, normal)
    return (tl.where(magnitude > 0x7F800000, 0x7F, finite) | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit(do_not_specialize=_COUNTS)
def _whole_kernel(
    x_ptr, w_ptr, scale_ptr, y_ptr, n_rows, n_cols, x_stride, eps_high, eps_low,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process ROWS whole rows: read x, the weight and the scale once, write y."""
    eps = float64_of(eps_high, eps_low)
    width = n_cols // VEC * VEC
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    live = rows < n_rows
    mask = live[:, None] & (cols < width)[None, :]
    x_ptrs = x_ptr + rows[:, None] * (x_stride // VEC * VEC) + cols[None, :]
    x = tl.load(x_ptrs, mask, other=0.0).to(tl.float32)
    # fp32 squares are added in fp64: the like terms of one thread would err in one direction.
    sums: tl.constexpr = (
        tl.float32 if x_ptr.dtype.element_ty.primitive_bitwidth < 32 else tl.float64
    )
    squares = tl.sum((x * x).to(sums), 1)
    mean = (divide(squares, tl.cast(n_cols, sums)) + eps.to(sums)).to(tl.float32)
    y = x * inverse_sqrt(mean)[:, None]
    again = live & ~in_range(mean)
    if tl.sum(again.to(tl.int32), 0) > 0:  # fp64 holds the square of every fp32
        wide = x.to(tl.float64)
        rstd = inverse_sqrt(tl.sum(wide * wide, 1) / n_cols + eps)
        y = tl.where(again[:, None], (wide * rstd[:, None]).to(tl.float32), y)
    if w_ptr is not None:
        w = tl.load(w_ptr + cols, cols < width, other=0.0, eviction_policy="evict_last")
        y *= w.to(tl.float32)[None, :]
    y_ptrs = y_ptr + rows[:, None] * width + cols[None, :]
    tl.store(y_ptrs, _e4m3(divide(y, tl.load(scale_ptr))), mask)


@triton.jit(do_not_specialize=_COUNTS[1:])
def _long_kernel(
    x_ptr, w_ptr, scale_ptr, y_ptr, n_cols, x_stride, eps_high, eps_low,
    VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process one row: read x twice, the second time backwards from what the caches still hold."""
    width = n_cols // VEC * VEC
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_row + cols, cols < width, other=0.0).to(tl.float64)
        total += x * x
    rstd = inverse_sqrt(tl.sum(total, 0) / n_cols + float64_of(eps_high, eps_low))
    scale = tl.load(scale_ptr)
    blocks = (n_cols + BLOCK - 1) // BLOCK
    for i in range(blocks):
        cols = (blocks - 1 - i) * BLOCK + tl.arange(0, BLOCK)
        mask = cols < width
        x = tl.load(x_row + cols, mask, other=0.0, eviction_policy="evict_first")
        y = (x.to(tl.float64) * rstd).to(tl.float32)
        if w_ptr is not None:
            w = tl.load(w_ptr + cols, mask, other=0.0, eviction_policy="evict_last")
            y *= w.to(tl.float32)
        tl.store(y_ptr + row * width + cols, _e4m3(divide(y, scale)), mask)


def fwd(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    scale: torch.Tensor | None,
    eps: float,
    wrap: Wrap | None = None,
) -> torch.Tensor:
    """Return y of x's shape in float8_e4m3fn.

    x: (rows, n_cols), last stride 1, any row stride. weight: (n_cols,), scale: one element, both
    contiguous. `wrap` is applied to the kernel before its launch.
    """
    n_rows, n_cols = x.shape
    y = x.new_empty((n_rows, n_cols), dtype=torch.uint8)
    counts = (n_cols, x.stride(0), *halves(float(eps)))
    meta = {"VEC": vec(x, n_cols, x.stride(0))}
    tensors = (x, weight, scale, y)
    if n_rows > 0 and n_cols <= _WHOLE:
        meta |= whole_meta(n_cols, max(_SIZE, power_of_2(max(n_cols, 1))), _WARPS)
        grid = (divide_up(n_rows, meta["ROWS"]),)
        launch(_whole_kernel, grid, (*tensors, n_rows, *counts), meta, wrap)
    elif n_rows > 0:
        meta |= {"BLOCK": _SIZE, "num_warps": _WARPS}
        launch(_long_kernel, (n_rows,), (*tensors, *counts), meta, wrap)
    return y.view(torch.float8_e4m3fn)
