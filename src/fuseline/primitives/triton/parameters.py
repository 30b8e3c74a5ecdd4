"""The gradients of what rows share: partial rows of them, and the kernel that adds those up.

dweight = sum over rows of dy * xhat and dbias = sum over rows of dy, either or both: the planes of
one tensor (planes, partial rows, n_cols), dweight's first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.rows import divide_up, power_of_2, processors, vec

# Terms are summed over so many tiles of rows, then over those sums: long sums of like terms err in
# one direction.
TILES = tl.constexpr(64)

# Not by row length, so in no table; measured on an H200 for dweight alone, 2026-11-20.
_LONG = {"ROWS": 16, "BLOCK": 256, "num_warps": 8}
_LONG_PROGRAMS = 4  # on each SM
_FINISH = {"ROWS": 256, "BLOCK": 16, "num_warps": 8}


@triton.jit(do_not_specialize=["n_rows", "n_cols", "x_stride", "dy_stride"])
def _long_kernel(
    dy_ptr, x_ptr, mean_ptr, rstd_ptr, shift_ptr, partial_ptr, n_rows, n_cols, dy_stride, x_stride,
    VEC: tl.constexpr, DWEIGHT: tl.constexpr, DBIAS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process BLOCK columns of every n-th tile of ROWS rows: read dy (and x), write partial rows.

    xhat = (x - mean) * rstd - shift; without a mean x * rstd.
    """
    acc: tl.constexpr = partial_ptr.dtype.element_ty
    width = n_cols // VEC * VEC
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dw = tl.zeros((ROWS, BLOCK), acc)
    dw_turn = tl.zeros((ROWS, BLOCK), acc)
    db = tl.zeros((ROWS, BLOCK), acc)
    db_turn = tl.zeros((ROWS, BLOCK), acc)
    tiles = (n_rows + ROWS - 1) // ROWS
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        live = rows < n_rows
        mask = live[:, None] & (cols < width)[None, :]
        dy_ptrs = dy_ptr + rows[:, None] * (dy_stride // VEC * VEC) + cols[None, :]
        dy = tl.load(dy_ptrs, mask, other=0.0).to(acc)
        if DWEIGHT:
            x_ptrs = x_ptr + rows[:, None] * (x_stride // VEC * VEC) + cols[None, :]
            xhat = tl.load(x_ptrs, mask, other=0.0).to(acc)
            if mean_ptr is not None:
                xhat -= tl.load(mean_ptr + rows, live, other=0.0)[:, None]
            xhat *= tl.load(rstd_ptr + rows, live, other=0.0)[:, None]
            if mean_ptr is not None:
                xhat -= tl.load(shift_ptr + rows, live, other=0.0)[:, None]
            dw_turn += dy * xhat
        if DBIAS:
            db_turn += dy
        if tile // tl.num_programs(1) % TILES == 0:
            if DWEIGHT:
                dw += dw_turn
                dw_turn = tl.zeros((ROWS, BLOCK), acc)
            if DBIAS:
                db += db_turn
                db_turn = tl.zeros((ROWS, BLOCK), acc)
    part = partial_ptr + tl.program_id(1).to(tl.int64) * width + cols
    if DWEIGHT:
        tl.store(part, tl.sum(dw + dw_turn, 0), cols < width)
        part += tl.num_programs(1).to(tl.int64) * width
    if DBIAS:
        tl.store(part, tl.sum(db + db_turn, 0), cols < width)


@triton.jit(do_not_specialize=["n_partials", "n_cols"])
def _finish_kernel(
    partial_ptr, first_ptr, second_ptr, n_partials, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Process BLOCK columns of one plane: read its partial rows in a fixed order, write the sum."""
    plane = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    partial_ptr += tl.cast(plane, tl.int64) * n_partials * n_cols
    sums = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, n_partials, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < n_partials)[:, None] & (cols < n_cols)[None, :]
        parts = partial_ptr + rows.to(tl.int64)[:, None] * n_cols + cols[None, :]
        sums += tl.load(parts, mask, other=0.0)
    total = tl.sum(sums, 0).to(partial_ptr.dtype.element_ty)
    if plane == 0:
        tl.store(first_ptr + cols, total.to(first_ptr.dtype.element_ty), cols < n_cols)
    elif second_ptr is not None:
        tl.store(second_ptr + cols, total.to(second_ptr.dtype.element_ty), cols < n_cols)


def partial_rows(x: torch.Tensor, size: int, programs: int, at_most_tiles: bool = False) -> int:
    """Return the partial rows of a plane: as many as the device runs at once, or as tiles.

    Of tiles of `size` elements, so many on each SM; longer rows go to `sum_long`. With
    `at_most_tiles` one for every TILES of tiles at least.
    """
    n_rows, n_cols = x.shape
    if n_cols <= size:
        rows, on_each = size // power_of_2(max(n_cols, 1)), float(programs)
    else:
        columns = divide_up(n_cols, _LONG["BLOCK"])
        rows, on_each = _LONG["ROWS"], _LONG_PROGRAMS / columns
    most, tiles = max(1, int(processors(x.device) * on_each)), divide_up(n_rows, rows)
    if at_most_tiles:
        most = torch.sym_max(most, divide_up(tiles, TILES.value))
    parts: int = torch.sym_min(tiles, most)
    return parts


def sum_long(
    dy: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    shift: torch.Tensor | None,
    partial: torch.Tensor,
    dweight: bool,
    dbias: bool,
    wrap: Wrap | None,
) -> None:
    """Write the partial rows of rows too long for one program; return which planes there are."""
    n_rows, n_cols = x.shape
    counts = (n_cols, dy.stride(0), x.stride(0))
    grid = (divide_up(n_cols, _LONG["BLOCK"]), partial.shape[-2])
    args = (dy, x, mean, rstd, shift, partial, n_rows, *counts)
    meta = {"VEC": vec(x, *counts), "DWEIGHT": dweight, "DBIAS": dbias, **_LONG}
    launch(_long_kernel, grid, args, meta, wrap)


def finish(
    partial: torch.Tensor, dtypes: Sequence[torch.dtype], wrap: Wrap | None
) -> list[torch.Tensor]:
    """Return the sums of the partial rows, a plane each of `dtypes`; one kernel."""
    n_partials, n_cols = partial.shape[-2:]
    sums = [partial.new_empty((n_cols,), dtype=dtype) for dtype in dtypes]
    if n_cols > 0:
        grid = (divide_up(n_cols, _FINISH["BLOCK"]), len(sums))
        args = (partial, sums[0], sums[1] if len(sums) > 1 else None, n_partials, n_cols)
        launch(_finish_kernel, grid, args, _FINISH, wrap)
    return sums
