"""The layer norm's backward kernels in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from fuseline.primitives.triton.norms.layer import parameter
from fuseline.primitives.triton.rms import BLOCKS
from fuseline.primitives.triton.row_sums import block, places

_COUNTS = ["n_rows", "n_cols", "x_stride", "dy_stride"]


@triton.jit
def _add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit(do_not_specialize=_COUNTS)
def bwd_kernel(
    dy_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, partial_ptr, n_rows, n_cols, dy_stride,
    x_stride, VEC: tl.constexpr, DWEIGHT: tl.constexpr, DBIAS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Process every n-th tile of ROWS whole rows: read dy, x, mean, rstd once, write dx.

    Keeps the weight and its parts of dweight and dbias in registers, writes the parts at the end:
    those of TILES tiles at most, since registers have no place for sums of sums.
    """
    acc: tl.constexpr = rstd_ptr.dtype.element_ty
    cols, inside = block(0, n_cols, VEC, BLOCK)
    w = parameter(w_ptr, cols, inside, 1.0, acc)[None, :]
    dw = tl.zeros((ROWS, BLOCK), acc)
    db = tl.zeros((ROWS, BLOCK), acc)
    tiles = (n_rows + ROWS - 1) // ROWS
    for i in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        rows = tl.cast(i, tl.int64) * ROWS + tl.arange(0, ROWS)
        live = rows < n_rows
        mask = live[:, None] & inside[None, :]
        dy = tl.load(places(dy_ptr, rows, dy_stride, cols, VEC), mask, other=0.0).to(acc)
        if DBIAS:
            db += dy
        if DWEIGHT or dx_ptr is not None:
            x = tl.load(places(x_ptr, rows, x_stride, cols, VEC), mask, other=0.0).to(acc)
            mean = tl.load(mean_ptr + rows, live, other=0.0)
            rstd = tl.load(rstd_ptr + rows, live, other=0.0)
            xhat = tl.where(mask, (x - mean[:, None]) * rstd[:, None], 0.0)
            g = dy * w
            # xhat's mean is what the rounding of the saved mean leaves: in fp32 of a mean of 1e4 it
            # may be half of a spread of 1e-3.
            shift, c, d = tl.reduce((xhat, g, g * xhat), 1, _add_three)
            shift /= n_cols
            c /= n_cols
            d = d / n_cols - shift * c
            xhat -= shift[:, None]
            if dx_ptr is not None:
                # One element is its own mean: 0 keeps g's roundings out of dx, NaN stays NaN.
                scale = tl.where(n_cols > 1, rstd, 0.0 * rstd)
                dx = (g - c[:, None] - xhat * d[:, None]) * scale[:, None]
                dx_ptrs = places(dx_ptr, rows, n_cols, cols, VEC)
                tl.store(dx_ptrs, dx.to(dx_ptr.dtype.element_ty), mask)
            if DWEIGHT:
                dw += dy * xhat
    part = partial_ptr
    if DWEIGHT or DBIAS:
        part += tl.program_id(0).to(tl.int64) * (n_cols // VEC * VEC) + cols
    if DWEIGHT:
        tl.store(part, tl.sum(dw, 0), inside)
        part += tl.num_programs(0).to(tl.int64) * (n_cols // VEC * VEC)
    if DBIAS:
        tl.store(part, tl.sum(db, 0), inside)


@triton.jit(do_not_specialize=_COUNTS[1:])
def dx_long_kernel(
    dy_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, shift_ptr, dx_ptr, n_cols, dy_stride, x_stride,
    VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process one row: read dy and x twice, the second time backwards, write dx.

    Also writes shift, what xhat's mean is by the rounding of the saved one; without dx that alone.
    """
    acc: tl.constexpr = rstd_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    dy_row = dy_ptr + row * (dy_stride // VEC * VEC)
    mean = tl.load(mean_ptr + row)
    rstd = tl.load(rstd_ptr + row)
    xhats = tl.zeros((BLOCK,), tl.float64)
    gs = tl.zeros((BLOCK,), tl.float64)
    products = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, n_cols, BLOCK * BLOCKS):
        xhat_turn = tl.zeros((BLOCK,), acc)
        g_turn = tl.zeros((BLOCK,), acc)
        product_turn = tl.zeros((BLOCK,), acc)
        for start in range(first, min(first + BLOCK * BLOCKS, n_cols), BLOCK):
            cols, mask = block(start, n_cols, VEC, BLOCK)
            x = tl.load(x_row + cols, mask, other=0.0).to(acc)
            xhat = tl.where(mask, (x - mean) * rstd, 0.0)
            xhat_turn += xhat
            if dx_ptr is not None:
                dy = tl.load(dy_row + cols, mask, other=0.0).to(acc)
                g = dy * parameter(w_ptr, cols, mask, 1.0, acc)
                g_turn += g
                product_turn += g * xhat
        xhats += xhat_turn
        gs += g_turn
        products += product_turn
    shift, c, d = tl.reduce((xhats, gs, products), 0, _add_three)
    shift /= n_cols
    if shift_ptr is not None:
        tl.store(shift_ptr + row, shift.to(acc))
    if dx_ptr is not None:
        c /= n_cols
        d = (d / n_cols - shift * c).to(acc)
        blocks = (n_cols + BLOCK - 1) // BLOCK
        for i in range(blocks):
            cols, mask = block((blocks - 1 - i) * BLOCK, n_cols, VEC, BLOCK)
            dy = tl.load(dy_row + cols, mask, other=0.0, eviction_policy="evict_first").to(acc)
            x = tl.load(x_row + cols, mask, other=0.0, eviction_policy="evict_first").to(acc)
            g = dy * parameter(w_ptr, cols, mask, 1.0, acc)
            xhat = (x - mean) * rstd - shift.to(acc)
            dx = (g - c.to(acc) - xhat * d) * rstd
            dx_row = dx_ptr + row * (n_cols // VEC * VEC)
            tl.store(dx_row + cols, dx.to(dx_ptr.dtype.element_ty), mask)
