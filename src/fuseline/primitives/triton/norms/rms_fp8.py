"""RMSNorm of x, or of x + residual as it is rounded, to e4m3: rows that fit the registers of one
program are read once; longer rows in blocks, twice, or three times where a row has one scale.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.norms.e4m3 import (
    GIVEN,
    ROW,
    bits_of,
    float32_of,
    group_of,
    magnitude,
    scale_of,
    store,
    store_blocks,
    store_by,
)
from fuseline.primitives.triton.rms import float64_of, in_range, inverse_sqrt
from fuseline.primitives.triton.row_sums import block, places, tile
from fuseline.primitives.triton.rows import divide_up, halves, power_of_2, vec, whole_meta

_COUNTS = ["n_rows", "n_cols", "x_stride", "r_stride", "eps_high", "eps_low", "ub_bits"]
# Not tuned on a GPU yet: rows in registers up to WHOLE elements, SIZE elements a program.
_WHOLE, _SIZE, _WARPS = 16384, 4096, 8


@triton.jit
def _sum(x_ptrs, r_ptrs, h_ptrs, mask):
    """Return x or, with r, x + r as h is rounded; write h."""
    x = tl.load(x_ptrs, mask, other=0.0).to(tl.float32)
    if r_ptrs is not None:
        rounded = (x + tl.load(r_ptrs, mask, other=0.0).to(tl.float32)).to(h_ptrs.dtype.element_ty)
        tl.store(h_ptrs, rounded, mask)
        x = rounded.to(tl.float32)
    return x


@triton.jit
def _weighted(v, w_ptr, cols, inside):
    """Return v times the weight, if there is one."""
    if w_ptr is not None:
        w = tl.load(w_ptr + cols, inside, other=0.0, eviction_policy="evict_last")
        v *= w.to(tl.float32)[None, :]
    return v


@triton.jit(do_not_specialize=_COUNTS)
def _whole_kernel(
    x_ptr, r_ptr, w_ptr, h_ptr, y_ptr, scale_ptr,
    n_rows, n_cols, x_stride, r_stride, eps_high, eps_low, ub_bits,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Process ROWS whole rows: read x, the residual and the weight once, write h, y and scales."""
    eps = float64_of(eps_high, eps_low)
    rows, live, cols, mask = tile(n_rows, n_cols, VEC, ROWS, BLOCK)
    r_ptrs = places(r_ptr, rows, r_stride, cols, VEC) if r_ptr is not None else None
    h_ptrs = places(h_ptr, rows, n_cols, cols, VEC) if r_ptr is not None else None
    x = _sum(places(x_ptr, rows, x_stride, cols, VEC), r_ptrs, h_ptrs, mask)
    # In fp64: the order of a sum follows from how pointers are aligned, and whether there is a
    # residual. The like terms of one thread would err in one direction, too.
    mean = (tl.sum((x * x).to(tl.float64), 1) / n_cols + eps).to(tl.float32)
    v = x * inverse_sqrt(mean)[:, None]
    again = live & ~in_range(mean)
    if tl.sum(again.to(tl.int32), 0) > 0:  # fp64 holds the square of every fp32
        wide = x.to(tl.float64)
        rstd = inverse_sqrt(tl.sum(wide * wide, 1) / n_cols + eps)
        v = tl.where(again[:, None], (wide * rstd[:, None]).to(tl.float32), v)
    v = _weighted(v, w_ptr, cols, cols < n_cols // VEC * VEC)
    y_ptrs = places(y_ptr, rows, n_cols, cols, VEC)
    ub = float32_of(ub_bits)
    store(v, y_ptrs, scale_ptr, rows, live, mask, n_cols, ub, ROWS, BLOCK, GROUP)


@triton.jit
def _long_values(h_row, w_ptr, start, n_cols, rstd, VEC: tl.constexpr, BLOCK: tl.constexpr):
    """Return a block of one row's norm, its columns, and which of them exist."""
    cols, inside = block(start, n_cols, VEC, BLOCK)
    x = tl.load(h_row + cols, inside, other=0.0)
    v = (x.to(tl.float64) * rstd).to(tl.float32)
    return _weighted(v[None, :], w_ptr, cols, inside), cols, inside


@triton.jit(do_not_specialize=_COUNTS[1:])
def _long_kernel(
    x_ptr, r_ptr, w_ptr, h_ptr, y_ptr, scale_ptr,
    n_cols, x_stride, r_stride, eps_high, eps_low, ub_bits,
    VEC: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Process one row: read x and the residual, write h; then read h, or x, from what the caches
    still hold, and write y and the scales.
    """
    width = n_cols // VEC * VEC
    rows = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    live = rows >= 0
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    r_row = r_ptr + row * (r_stride // VEC * VEC) if r_ptr is not None else None
    h_row = h_ptr + row * width if r_ptr is not None else x_row
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols, inside = block(start, n_cols, VEC, BLOCK)
        r_ptrs = r_row + cols if r_ptr is not None else None
        x = _sum(x_row + cols, r_ptrs, h_row + cols, inside).to(tl.float64)
        total += x * x
    rstd = inverse_sqrt(tl.sum(total, 0) / n_cols + float64_of(eps_high, eps_low))
    if r_ptr is not None:
        tl.debug_barrier()  # h is read back, perhaps by other threads than wrote it
    ub = float32_of(ub_bits)
    blocks = (n_cols + BLOCK - 1) // BLOCK
    if GROUP == ROW:
        most = tl.zeros((1, BLOCK), tl.int32)
        for start in range(0, n_cols, BLOCK):
            v, _, _ = _long_values(h_row, w_ptr, start, n_cols, rstd, VEC, BLOCK)
            most = tl.maximum(most, magnitude(v))
        scale = scale_of(tl.max(most, 1), ub)
        tl.store(scale_ptr + rows, scale, live)
    elif GROUP == GIVEN:
        scale = tl.load(scale_ptr + tl.arange(0, 1))
    for i in range(blocks):
        start = (blocks - 1 - i) * BLOCK
        v, cols, inside = _long_values(h_row, w_ptr, start, n_cols, rstd, VEC, BLOCK)
        y_ptrs = (y_ptr + row * width + cols)[None, :]
        if GROUP > 0:
            store_blocks(
                v, y_ptrs, scale_ptr, rows, live, inside[None, :], start, n_cols, ub,
                1, BLOCK, GROUP,
            )  # fmt: skip
        else:
            store_by(v, scale[:, None], y_ptrs, inside[None, :])


def fwd(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    scale: torch.Tensor | None,
    block: int | None = None,
    scale_ub: float | None = None,
    wrap: Wrap | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return y in float8_e4m3fn, the scales, and x + residual, None without a residual.

    x, residual: (rows, n_cols), last stride 1, any row stride. weight: (n_cols,), contiguous.
    scale: one element, by which y is divided; None: scales are made, one of each row or of each
    `block` of it. `wrap` is applied to the kernel before its launch.
    """
    n_rows, n_cols = x.shape
    group = GIVEN.value if scale is not None else group_of(block)
    if scale is None:
        count = divide_up(n_cols, block) if block else 1
        scale = x.new_empty((n_rows, count), dtype=torch.float32)
    y = x.new_empty((n_rows, n_cols), dtype=torch.uint8)
    h = None if residual is None else x.new_empty((n_rows, n_cols))
    strides = (x.stride(0), x.stride(0) if residual is None else residual.stride(0))
    counts = (n_cols, *strides, *halves(float(eps)), bits_of(scale_ub))
    meta = {"VEC": vec(x, n_cols, *strides)}
    tensors = (x, residual, weight, h, y, scale)
    if n_rows > 0 and n_cols <= _WHOLE:
        size = max(power_of_2(max(n_cols, 1)), group)
        meta |= whole_meta(size, max(_SIZE, size), _WARPS) | {"GROUP": group}
        args = (*tensors, n_rows, *counts)
        launch(_whole_kernel, (divide_up(n_rows, meta["ROWS"]),), args, meta, wrap)
    elif n_rows > 0:
        meta |= {"BLOCK": _SIZE, "num_warps": _WARPS, "GROUP": group}
        launch(_long_kernel, (n_rows,), (*tensors, *counts), meta, wrap)
    return y.view(torch.float8_e4m3fn), scale, h
