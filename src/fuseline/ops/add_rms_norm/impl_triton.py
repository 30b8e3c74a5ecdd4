"""x + residual and its RMSNorm in Triton, over the last dimension; h is the rounded sum.

Rows that fit the registers of one program are read once; longer rows in blocks, h twice. A row's
result depends on its own length and type only, never on how many rows there are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseline.core.selection.tuned import Entry, Table, Tile
from fuseline.primitives.rms import statistics_dtype
from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.parameters import TILES, finish, partial_rows, sum_long
from fuseline.primitives.triton.rms import (
    BLOCKS,
    divide,
    fallback,
    float64_of,
    in_range,
    inverse_sqrt,
)
from fuseline.primitives.triton.rows import divide_up, halves, vec, whole_meta

_FWD_COUNTS = ["n_rows", "n_cols", "x_stride", "r_stride", "eps_high", "eps_low"]
_BWD_COUNTS = ["n_rows", "n_cols", "dy_stride", "dh_stride", "h_stride"]


@triton.jit(do_not_specialize=_FWD_COUNTS)
def _fwd_kernel(
    x_ptr, r_ptr, w_ptr, h_ptr, y_ptr, rstd_ptr,
    n_rows, n_cols, x_stride, r_stride, eps_high, eps_low,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process ROWS whole rows: read x, the residual and the weight once, write h, y and rstd."""
    dtype: tl.constexpr = h_ptr.dtype.element_ty
    acc: tl.constexpr = tl.float64 if dtype == tl.float64 else tl.float32
    eps = float64_of(eps_high, eps_low)
    width = n_cols // VEC * VEC
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    live = rows < n_rows
    mask = live[:, None] & (cols < width)[None, :]
    x_ptrs = x_ptr + rows[:, None] * (x_stride // VEC * VEC) + cols[None, :]
    r_ptrs = r_ptr + rows[:, None] * (r_stride // VEC * VEC) + cols[None, :]
    x = tl.load(x_ptrs, mask, other=0.0).to(acc)
    r = tl.load(r_ptrs, mask, other=0.0).to(acc)
    rounded = (x + r).to(dtype)
    tl.store(h_ptr + rows[:, None] * width + cols[None, :], rounded, mask)
    h = rounded.to(acc)
    # fp32 squares are added in fp64: the like terms of one thread would err in one direction.
    sums: tl.constexpr = tl.float32 if dtype.primitive_bitwidth < 32 else tl.float64
    squares = tl.sum((h * h).to(sums), 1)
    mean = (divide(squares, tl.cast(n_cols, sums)) + eps.to(sums)).to(acc)
    good = live & in_range(mean)
    rstd = inverse_sqrt(mean)
    y = h * rstd[:, None]
    if w_ptr is not None:
        w = tl.load(w_ptr + cols, cols < width, other=0.0, eviction_policy="evict_last").to(acc)
        y *= w[None, :]
    y_ptrs = y_ptr + rows[:, None] * width + cols[None, :]
    tl.store(y_ptrs, y.to(dtype), mask & good[:, None])
    if rstd_ptr is not None:
        tl.store(rstd_ptr + rows, rstd, good)
    again = live & ~good
    if tl.sum(again.to(tl.int32), 0) > 0:
        tl.debug_barrier()  # h is read back, perhaps by other threads than wrote it
        fallback(
            h_ptr, w_ptr, y_ptr, rstd_ptr, rows, again, mean, n_cols, width, eps,
            VEC, ROWS, max(BLOCK // 4, 1),
        )  # fmt: skip


@triton.jit(do_not_specialize=_FWD_COUNTS[1:])
def _fwd_long_kernel(
    x_ptr, r_ptr, w_ptr, h_ptr, y_ptr, rstd_ptr, n_cols, x_stride, r_stride, eps_high, eps_low,
    VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process one row: read x and the residual, write h, read it backwards from what the caches
    still hold, and writes y and rstd.
    """
    dtype: tl.constexpr = h_ptr.dtype.element_ty
    acc: tl.constexpr = tl.float64 if dtype == tl.float64 else tl.float32
    eps = float64_of(eps_high, eps_low)
    width = n_cols // VEC * VEC
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    r_row = r_ptr + row * (r_stride // VEC * VEC)
    h_row = h_ptr + row * width
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, n_cols, BLOCK * BLOCKS):
        squares = tl.zeros((BLOCK,), acc)
        for start in range(first, min(first + BLOCK * BLOCKS, n_cols), BLOCK):
            cols = start + tl.arange(0, BLOCK)
            mask = cols < width
            x = tl.load(x_row + cols, mask, other=0.0, eviction_policy="evict_first").to(acc)
            r = tl.load(r_row + cols, mask, other=0.0, eviction_policy="evict_first").to(acc)
            rounded = (x + r).to(dtype)
            tl.store(h_row + cols, rounded, mask)
            h = rounded.to(acc)
            squares += h * h
        total += squares
    tl.debug_barrier()  # h is read back, perhaps by other threads than wrote it
    mean = (tl.sum(total, 0) / n_cols + eps).to(acc)
    if in_range(mean):
        rstd = inverse_sqrt(mean)
        if rstd_ptr is not None:
            tl.store(rstd_ptr + row, rstd)
        blocks = (n_cols + BLOCK - 1) // BLOCK
        for i in range(blocks):
            cols = (blocks - 1 - i) * BLOCK + tl.arange(0, BLOCK)
            mask = cols < width
            y = tl.load(h_row + cols, mask, other=0.0).to(acc) * rstd
            if w_ptr is not None:
                y *= tl.load(w_ptr + cols, mask, other=0.0, eviction_policy="evict_last").to(acc)
            tl.store(y_ptr + row * width + cols, y.to(dtype), mask)
    else:
        rows = row + tl.arange(0, 1)
        means = mean + tl.zeros((1,), acc)
        fallback(
            h_ptr, w_ptr, y_ptr, rstd_ptr, rows, rows >= 0, means, n_cols, width, eps,
            VEC, 1, BLOCK // 4,
        )  # fmt: skip


@triton.jit(do_not_specialize=_BWD_COUNTS)
def _bwd_kernel(
    dy_ptr, dh_ptr, h_ptr, w_ptr, rstd_ptr, dx_ptr, partial_ptr,
    n_rows, n_cols, dy_stride, dh_stride, h_stride,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Process every n-th tile of ROWS whole rows: read dy, dh, h, rstd once, write dx.

    Keeps the weight and its part of dweight in registers, writes the part at the end.
    """
    acc: tl.constexpr = rstd_ptr.dtype.element_ty
    width = n_cols // VEC * VEC
    cols = tl.arange(0, BLOCK)
    if w_ptr is not None and dx_ptr is not None:
        w = tl.load(w_ptr + cols, cols < width, other=0.0).to(acc)
    dw = tl.zeros((ROWS, BLOCK), acc)
    turn = tl.zeros((ROWS, BLOCK), acc)
    tiles = (n_rows + ROWS - 1) // ROWS
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        live = rows < n_rows
        mask = live[:, None] & (cols < width)[None, :]
        dy_ptrs = dy_ptr + rows[:, None] * (dy_stride // VEC * VEC) + cols[None, :]
        h_ptrs = h_ptr + rows[:, None] * (h_stride // VEC * VEC) + cols[None, :]
        dy = tl.load(dy_ptrs, mask, other=0.0).to(acc)
        h = tl.load(h_ptrs, mask, other=0.0).to(acc)
        rstd = tl.load(rstd_ptr + rows, live, other=0.0)[:, None]
        hhat = h * rstd
        if partial_ptr is not None:
            turn += dy * hhat
            flush = tile // tl.num_programs(0) % TILES == 0
            dw += tl.where(flush, turn, 0.0)
            turn = tl.where(flush, 0.0, turn)
        if dx_ptr is not None:
            if w_ptr is not None:
                dy *= w[None, :]
            c = tl.sum(dy * hhat, 1) / n_cols
            dx = (dy - hhat * c[:, None]) * rstd
            if dh_ptr is not None:
                dh_ptrs = dh_ptr + rows[:, None] * (dh_stride // VEC * VEC) + cols[None, :]
                dx += tl.load(dh_ptrs, mask, other=0.0).to(acc)
            dx_ptrs = dx_ptr + rows[:, None] * width + cols[None, :]
            tl.store(dx_ptrs, dx.to(dx_ptr.dtype.element_ty), mask)
    if partial_ptr is not None:
        part = partial_ptr + tl.program_id(0).to(tl.int64) * width + cols
        tl.store(part, tl.sum(dw + turn, 0), cols < width)


@triton.jit(do_not_specialize=_BWD_COUNTS[1:])
def _dx_long_kernel(
    dy_ptr, dh_ptr, h_ptr, w_ptr, rstd_ptr, dx_ptr, n_cols, dy_stride, dh_stride, h_stride,
    VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process one row: read dy and h twice, the second time backwards, dh once, write dx."""
    acc: tl.constexpr = rstd_ptr.dtype.element_ty
    width = n_cols // VEC * VEC
    row = tl.program_id(0).to(tl.int64)
    dy_row = dy_ptr + row * (dy_stride // VEC * VEC)
    h_row = h_ptr + row * (h_stride // VEC * VEC)
    rstd = tl.load(rstd_ptr + row)
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, n_cols, BLOCK * BLOCKS):
        dots = tl.zeros((BLOCK,), acc)
        for start in range(first, min(first + BLOCK * BLOCKS, n_cols), BLOCK):
            cols = start + tl.arange(0, BLOCK)
            mask = cols < width
            dy = tl.load(dy_row + cols, mask, other=0.0).to(acc)
            hhat = tl.load(h_row + cols, mask, other=0.0).to(acc) * rstd
            if w_ptr is not None:
                dy *= tl.load(w_ptr + cols, mask, other=0.0, eviction_policy="evict_last").to(acc)
            dots += dy * hhat
        total += dots
    c = (tl.sum(total, 0) / n_cols).to(acc)
    blocks = (n_cols + BLOCK - 1) // BLOCK
    for i in range(blocks):
        cols = (blocks - 1 - i) * BLOCK + tl.arange(0, BLOCK)
        mask = cols < width
        dy = tl.load(dy_row + cols, mask, other=0.0, eviction_policy="evict_first").to(acc)
        h = tl.load(h_row + cols, mask, other=0.0, eviction_policy="evict_first").to(acc)
        if w_ptr is not None:
            dy *= tl.load(w_ptr + cols, mask, other=0.0, eviction_policy="evict_last").to(acc)
        dx = (dy - h * rstd * c) * rstd
        if dh_ptr is not None:
            dh_row = dh_ptr + row * (dh_stride // VEC * VEC)
            dx += tl.load(dh_row + cols, mask, other=0.0, eviction_policy="evict_first").to(acc)
        tl.store(dx_ptr + row * width + cols, dx.to(dx_ptr.dtype.element_ty), mask)


# rms_norm's, with fewer elements a thread where two inputs take more registers; not measured on a
# GPU yet.
_BLOCKS = Entry(None, Tile(4096, 8))
_TABLE = Table("", {
    ("fwd", 2): (Entry(2048, Tile(2048, 4)), Entry(4096, Tile(8192, 16)),
                 Entry(16384, Tile(16384, 16)), Entry(32768, Tile(32768, 32)), _BLOCKS),
    ("fwd", 4): (Entry(1024, Tile(1024, 4)), Entry(8192, Tile(8192, 16)),
                 Entry(16384, Tile(16384, 32)), _BLOCKS),
    ("fwd", 8): (Entry(2048, Tile(2048, 4)), Entry(4096, Tile(4096, 8)),
                 Entry(8192, Tile(8192, 16)), _BLOCKS),
    ("bwd", 2): (Entry(1024, Tile(1024, 4, 4, 4)), Entry(2048, Tile(2048, 8, 4, 2)),
                 Entry(4096, Tile(4096, 16, 4)), Entry(8192, Tile(8192, 32, 3)),
                 Entry(16384, Tile(16384, 16)), _BLOCKS),
    ("bwd", 4): (Entry(1024, Tile(1024, 8, 4, 2)), Entry(2048, Tile(2048, 16, 4)),
                 Entry(4096, Tile(4096, 32, 3)), Entry(16384, Tile(16384, 32)), _BLOCKS),
    ("bwd", 8): (Entry(2048, Tile(2048, 16, 2, 2)), Entry(4096, Tile(4096, 32, 2)), _BLOCKS),
})  # fmt: skip


def fwd(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    save_rstd: bool,
    wrap: Wrap | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return y and h of x's shape and dtype, and rstd (rows,) in
    fp32 (fp64 for fp64 x) if `save_rstd`.

    x, residual: (rows, n_cols), one dtype, last stride 1, any row stride. weight: (n_cols,),
    contiguous. `wrap` is applied to each kernel before its launch; without it it runs at once.
    """
    n_rows, n_cols = x.shape
    y, h = x.new_empty((n_rows, n_cols)), x.new_empty((n_rows, n_cols))
    rstd = x.new_empty((n_rows,), dtype=statistics_dtype(x)) if save_rstd else None
    if n_rows == 0:
        return y, h, rstd
    tensors = (x, residual, weight, h, y, rstd)
    strides = (x.stride(0), residual.stride(0))
    counts = (n_cols, *strides, *halves(float(eps)))
    meta = {"VEC": vec(x, n_cols, *strides)}
    tile = _TABLE.tile("fwd", x.element_size(), n_cols)
    if n_cols <= tile.size:
        meta |= whole_meta(n_cols, tile.size, tile.warps)
        grid = (divide_up(n_rows, meta["ROWS"]),)
        launch(_fwd_kernel, grid, (*tensors, n_rows, *counts), meta, wrap)
    else:
        meta |= {"BLOCK": tile.size, "num_warps": tile.warps}
        launch(_fwd_long_kernel, (n_rows,), (*tensors, *counts), meta, wrap)
    return y, h, rstd


def bwd(
    dy: torch.Tensor,
    dh: torch.Tensor | None,
    h: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    need_dx: bool,
    need_dweight: bool,
    wrap: Wrap | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return dx of h's shape and dtype, dweight of weight's,
    each None unless needed; deterministic.

    dx = rstd * (dy * w - hhat * mean(dy * w * hhat)) + dh, dweight = sum over rows of dy * hhat,
    hhat = h * rstd. dy, dh, h: (rows, n_cols), one dtype, last stride 1, any row stride.
    """
    n_rows, n_cols = h.shape
    need_dweight = need_dweight and weight is not None
    tile = _TABLE.tile("bwd", h.element_size(), n_cols)
    n_partials = partial_rows(h, tile.size, tile.programs)
    dx = h.new_empty((n_rows, n_cols)) if need_dx else None
    partial = None
    if need_dweight:
        partial = h.new_empty((n_partials, n_cols), dtype=statistics_dtype(h))
    counts = (n_cols, dy.stride(0), 0 if dh is None else dh.stride(0), h.stride(0))
    meta = {"VEC": vec(h, *counts)}
    tensors = (dy, dh, h, weight, rstd, dx)
    if n_rows > 0 and n_cols <= tile.size and (need_dx or need_dweight):
        meta |= whole_meta(n_cols, tile.size, tile.warps) | {"STAGES": tile.stages}
        launch(_bwd_kernel, (n_partials,), (*tensors, partial, n_rows, *counts), meta, wrap)
    elif n_rows > 0 and n_cols > tile.size:
        if need_dx:
            meta |= {"BLOCK": tile.size, "num_warps": tile.warps}
            launch(_dx_long_kernel, (n_rows,), (*tensors, *counts), meta, wrap)
        if partial is not None:
            sum_long(dy, h, None, rstd, None, partial, True, False, wrap)
    if partial is None or weight is None:
        return dx, None
    (dweight,) = finish(partial, (weight.dtype,), wrap)
    return dx, dweight
