"""The kernels of bias_dropout_add: consecutive elements, or tiles of operands that lie apart."""

from __future__ import annotations

import triton
import triton.language as tl

from fuseline.primitives.triton.rms import float64_of

_DRAW = ["seed", "threshold", "scale_high", "scale_low"]
_AXES = ["row", "col", "axis1", "axis0"]
_COUNTS = [
    *("n_rows", "n_cols", "n_axis1", "first"),
    *(f"{t}_{axis}" for t in ("out", "x", "bias", "residual", "position") for axis in _AXES),
]


@triton.jit
def _unsigned(threshold):
    """Return the bits of a signed number, which may be a constant: torch 2.11 lowers it as one."""
    return tl.full((), threshold, tl.int32).to(tl.uint32, bitcast=True)


@triton.jit
def _kept(seed, position, threshold):
    """Return which elements dropout keeps, each drawing for itself."""
    a, b, c, d = tl.randint4x(seed, position >> 2)
    lane = position & 3
    return tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d)) >= threshold


@triton.jit
def _kept_by_fours(seed, counter, threshold):
    """Return the same for the four elements of each counter: four times as many columns."""
    a, b, c, d = tl.randint4x(seed, counter)
    pairs = tl.join(
        tl.join(a >= threshold, c >= threshold), tl.join(b >= threshold, d >= threshold)
    )
    return tl.reshape(pairs, (counter.shape[0], counter.shape[1] * 4))


@triton.jit
def _store_sum(out, x, bias, residual, kept, mask, scale_high, scale_low):
    """Store residual + (x + bias) * factor; bias, residual and kept None: without them."""
    C: tl.constexpr = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    v = tl.load(x, mask).to(C)
    if bias is not None:
        v += tl.load(bias, mask).to(C)
    if kept is not None:
        v *= tl.where(kept, float64_of(scale_high, scale_low).to(C), 0.0)
    if residual is not None:
        v += tl.load(residual, mask).to(C)
    tl.store(out, v.to(out.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["n", *_DRAW])
def flat_kernel(
    out_ptr, x_ptr, bias_ptr, residual_ptr, seed_ptr, n, seed, threshold, scale_high, scale_low,
    DROP: tl.constexpr, VEC: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Process COLS consecutive elements: read x, bias and residual once, write out.

    The seed is the number or, if there is one, what seed_ptr points to.
    """
    start = tl.program_id(0).to(tl.int64) * COLS
    at = start + tl.arange(0, COLS)
    kept = None
    if DROP:
        if seed_ptr is not None:
            seed = tl.load(seed_ptr)
        counter = (start >> 2) + tl.arange(0, COLS // 4)
        fours = _kept_by_fours(seed, counter[None, :], _unsigned(threshold))
        kept = tl.reshape(fours, (COLS,))
    bias = None
    residual = None
    if bias_ptr is not None:
        bias = bias_ptr + at
        residual = residual_ptr + at
    mask = at < n // VEC * VEC
    _store_sum(out_ptr + at, x_ptr + at, bias, residual, kept, mask, scale_high, scale_low)


@triton.jit
def _places(
    ptr, rows, cols, axis1, axis0, row, col, step1, step0,
    UNIT: tl.constexpr, ROW_VEC: tl.constexpr, COL_VEC: tl.constexpr,
):  # fmt: skip
    """Return the pointers to a tile of an operand, with what is known of its alignment."""
    outer = axis1 * step1 + axis0 * step0
    if UNIT == 1:
        at = rows[:, None] * (row // COL_VEC * COL_VEC) + cols[None, :]
        outer = outer // COL_VEC * COL_VEC
    elif UNIT == 0:
        at = rows[:, None] + cols[None, :] * (col // ROW_VEC * ROW_VEC)
        outer = outer // ROW_VEC * ROW_VEC
    else:
        at = rows[:, None] * row + cols[None, :] * col
    return ptr + outer + at


@triton.jit(do_not_specialize=[*_COUNTS, *_DRAW])
def tile_kernel(
    out_ptr, x_ptr, bias_ptr, residual_ptr, seed_ptr, n_rows, n_cols, n_axis1,
    out_row, out_col, out_axis1, out_axis0, x_row, x_col, x_axis1, x_axis0,
    bias_row, bias_col, bias_axis1, bias_axis0,
    residual_row, residual_col, residual_axis1, residual_axis0,
    position_row, position_col, position_axis1, position_axis0, first,
    seed, threshold, scale_high, scale_low,
    X: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, DROP: tl.constexpr,
    ROW_VEC: tl.constexpr, COL_VEC: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Process ROWS x COLS elements of one slice: read x, bias and residual once, write out.

    X, BIAS, RESIDUAL: along which axis of the tile they are contiguous, if along one. DROP: along
    which four elements share a counter; 3: no dropout. The seed is that of flat_kernel.
    """
    row_tiles = (n_rows + ROWS - 1) // ROWS
    col_tiles = (n_cols + COLS - 1) // COLS
    tile = tl.program_id(0)
    col_start = (tile % col_tiles).to(tl.int64) * COLS
    row_start = (tile // col_tiles % row_tiles).to(tl.int64) * ROWS
    outer = (tile // col_tiles // row_tiles).to(tl.int64)
    axis1, axis0 = outer % n_axis1, outer // n_axis1
    rows = row_start + tl.arange(0, ROWS)
    cols = col_start + tl.arange(0, COLS)
    kept = None
    if DROP != 3:
        if seed_ptr is not None:
            seed = tl.load(seed_ptr)
        limit = _unsigned(threshold)
        start = first + axis1 * position_axis1 + axis0 * position_axis0
        if DROP == 1:
            lines = start + rows * position_row
            counters = (col_start >> 2) + tl.arange(0, COLS // 4)
            kept = _kept_by_fours(seed, (lines >> 2)[:, None] + counters[None, :], limit)
        elif DROP == 0:
            lines = start + cols * position_col
            counters = (row_start >> 2) + tl.arange(0, ROWS // 4)
            kept = tl.trans(_kept_by_fours(seed, (lines >> 2)[:, None] + counters[None, :], limit))
        else:
            each = rows[:, None] * position_row + cols[None, :] * position_col
            kept = _kept(seed, start + each, limit)
    out = _places(
        out_ptr, rows, cols, axis1, axis0, out_row, out_col, out_axis1, out_axis0,
        1, ROW_VEC, COL_VEC,
    )  # fmt: skip
    x = _places(
        x_ptr, rows, cols, axis1, axis0, x_row, x_col, x_axis1, x_axis0, X, ROW_VEC, COL_VEC
    )
    bias = None
    residual = None
    if bias_ptr is not None:
        bias = _places(
            bias_ptr, rows, cols, axis1, axis0, bias_row, bias_col, bias_axis1, bias_axis0,
            BIAS, ROW_VEC, COL_VEC,
        )  # fmt: skip
        residual = _places(
            residual_ptr, rows, cols, axis1, axis0,
            residual_row, residual_col, residual_axis1, residual_axis0,
            RESIDUAL, ROW_VEC, COL_VEC,
        )  # fmt: skip
    row_mask = rows < n_rows // ROW_VEC * ROW_VEC
    mask = row_mask[:, None] & (cols < n_cols // COL_VEC * COL_VEC)[None, :]
    _store_sum(out, x, bias, residual, kept, mask, scale_high, scale_low)
