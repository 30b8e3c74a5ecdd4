"""The root-mean-square norm's device functions, and the kernels that sum dweight."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseline.primitives.triton.launch import Wrap, launch
from fuseline.primitives.triton.rows import divide_up, power_of_2, processors, vec

# Below TINY32 the squares of fp32 lose bits to underflow, below TINY64 those of fp64.
TINY32 = tl.constexpr(1e-30)
TINY64 = tl.constexpr(1e-280)
UP = tl.constexpr(2.0**600)
DOWN = tl.constexpr(2.0**-600)
# A long row is summed in fp32 over so many blocks, then in fp64: long sums of like terms err in
# one direction.
BLOCKS = tl.constexpr(8)
TILES = tl.constexpr(64)  # and dweight's terms over so many tiles of rows, then over those sums

# Not by row length, so in no table; measured on an H200, 2026-11-20.
_DWEIGHT_LONG = {"ROWS": 16, "BLOCK": 256, "num_warps": 8}
_DWEIGHT_LONG_PROGRAMS = 4  # on each SM
_FINISH = {"ROWS": 256, "BLOCK": 16, "num_warps": 8}


@triton.jit
def float64_of(high, low):
    """A double from the two halves of its bits: Triton would round a Python float to fp32."""
    bits = (tl.cast(high, tl.int64) << 32) | (tl.cast(low, tl.int64) & 0xFFFFFFFF)
    return tl.cast(bits, tl.float64, bitcast=True)


@triton.jit
def divide(a, b):
    """a / b correctly rounded, as fp64 always is; the plain fp32 division is 2 ULP off."""
    return a / b if a.dtype == tl.float64 else tl.div_rn(a, b)


@triton.jit
def inverse_sqrt(a):
    """1 / sqrt(a), both steps correctly rounded; the hardware's rsqrt is 2 ULP off."""
    return 1.0 / tl.sqrt(a) if a.dtype == tl.float64 else tl.div_rn(1.0, tl.sqrt_rn(a))


@triton.jit
def in_range(a):
    """Whether a mean square is finite, not NaN, and large enough to be exact."""
    tiny: tl.constexpr = TINY64 if a.dtype == tl.float64 else TINY32
    return (a >= tiny) & (a < float("inf"))


@triton.jit
def plus(w, OFFSET: tl.constexpr):
    """OFFSET + w in w's own type; w itself for 0."""
    return w if OFFSET == 0.0 else w + tl.full((), OFFSET, w.dtype)


@triton.jit
def second_look(
    x_ptr, w_ptr, y_ptr, rstd_ptr, rows, again, mean, n_cols, x_stride, eps,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, OFFSET: tl.constexpr = 0.0,
):  # fmt: skip
    """Owns the rows marked `again`: reads x twice, writes y and rstd.

    fp64 holds the square of every fp32; fp64 rows are first scaled by a power of two.
    """
    acc: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    width = n_cols // VEC * VEC
    x_rows = x_ptr + rows[:, None] * (x_stride // VEC * VEC)
    scale = tl.full((ROWS,), 1.0, tl.float64)
    if acc == tl.float64:
        scale = tl.where(mean < 1.0, UP, DOWN)
    squares = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = again[:, None] & (cols < width)[None, :]
        x = tl.load(x_rows + cols[None, :], mask, other=0.0).to(tl.float64) * scale[:, None]
        squares += x * x
    r = inverse_sqrt(tl.sum(squares, 1) / n_cols + eps * scale * scale)
    # Scaled up first, or down last: the small elements of a large row would lose bits scaled.
    first = tl.where(scale > 1.0, scale, r)
    second = tl.where(scale > 1.0, r, scale)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = again[:, None] & (cols < width)[None, :]
        x = tl.load(x_rows + cols[None, :], mask, other=0.0).to(tl.float64)
        y = x * first[:, None] * second[:, None]
        if w_ptr is not None:
            w = tl.load(w_ptr + cols, cols < width, other=0.0).to(tl.float64)
            y *= plus(w, OFFSET)[None, :]
        y_ptrs = y_ptr + rows[:, None] * width + cols[None, :]
        tl.store(y_ptrs, y.to(acc).to(y_ptr.dtype.element_ty), mask)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + rows, (r * scale).to(acc), again)


@triton.jit(do_not_specialize=["n_rows", "n_cols", "x_stride", "dy_stride"])
def _dweight_long_kernel(
    dy_ptr, x_ptr, rstd_ptr, partial_ptr, n_rows, n_cols, dy_stride, x_stride,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Owns BLOCK columns of every n-th tile of ROWS rows: reads dy, x, rstd, writes a partial."""
    acc: tl.constexpr = rstd_ptr.dtype.element_ty
    width = n_cols // VEC * VEC
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dw = tl.zeros((ROWS, BLOCK), acc)
    turn = tl.zeros((ROWS, BLOCK), acc)
    tiles = (n_rows + ROWS - 1) // ROWS
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        live = rows < n_rows
        mask = live[:, None] & (cols < width)[None, :]
        dy_ptrs = dy_ptr + rows[:, None] * (dy_stride // VEC * VEC) + cols[None, :]
        x_ptrs = x_ptr + rows[:, None] * (x_stride // VEC * VEC) + cols[None, :]
        dy = tl.load(dy_ptrs, mask, other=0.0).to(acc)
        x = tl.load(x_ptrs, mask, other=0.0).to(acc)
        turn += dy * (x * tl.load(rstd_ptr + rows, live, other=0.0)[:, None])
        if tile // tl.num_programs(1) % TILES == 0:
            dw += turn
            turn = tl.zeros((ROWS, BLOCK), acc)
    part = partial_ptr + tl.program_id(1).to(tl.int64) * width + cols
    tl.store(part, tl.sum(dw + turn, 0), cols < width)


@triton.jit(do_not_specialize=["n_partials", "n_cols"])
def _finish_kernel(
    partial_ptr, dweight_ptr, n_partials, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Owns BLOCK columns: reads the partial rows in a fixed order, writes dweight."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dw = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, n_partials, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < n_partials)[:, None] & (cols < n_cols)[None, :]
        parts = partial_ptr + rows.to(tl.int64)[:, None] * n_cols + cols[None, :]
        dw += tl.load(parts, mask, other=0.0)
    total = tl.sum(dw, 0).to(partial_ptr.dtype.element_ty)
    tl.store(dweight_ptr + cols, total.to(dweight_ptr.dtype.element_ty), cols < n_cols)


def partial_rows(x: torch.Tensor, size: int, programs: int) -> int:
    """Partial rows of dweight: as many as the device works on at once, or as there are tiles.

    Of tiles of `size` elements, so many on each SM; longer rows go to `sum_dweight_long`.
    """
    n_rows, n_cols = x.shape
    if n_cols <= size:
        rows, on_each = size // power_of_2(max(n_cols, 1)), float(programs)
    else:
        columns = divide_up(n_cols, _DWEIGHT_LONG["BLOCK"])
        rows, on_each = _DWEIGHT_LONG["ROWS"], _DWEIGHT_LONG_PROGRAMS / columns
    most = max(1, int(processors(x.device) * on_each))
    tiles: int = torch.sym_min(divide_up(n_rows, rows), most)
    return tiles


def sum_dweight_long(
    dy: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor, partial: torch.Tensor, wrap: Wrap | None
) -> None:
    """Writes the partial rows of dweight where rows are too long for one program."""
    n_rows, n_cols = x.shape
    counts = (n_cols, dy.stride(0), x.stride(0))
    grid = (divide_up(n_cols, _DWEIGHT_LONG["BLOCK"]), partial.shape[0])
    args = (dy, x, rstd, partial, n_rows, *counts)
    meta = {"VEC": vec(x, *counts), **_DWEIGHT_LONG}
    launch(_dweight_long_kernel, grid, args, meta, wrap)


def finish_dweight(partial: torch.Tensor, weight: torch.Tensor, wrap: Wrap | None) -> torch.Tensor:
    """dweight, in the dtype of weight: the sum of its partial rows."""
    n_partials, n_cols = partial.shape
    dweight = weight.new_empty((n_cols,))
    if n_cols > 0:
        grid = (divide_up(n_cols, _FINISH["BLOCK"]),)
        launch(_finish_kernel, grid, (partial, dweight, n_partials, n_cols), _FINISH, wrap)
    return dweight
