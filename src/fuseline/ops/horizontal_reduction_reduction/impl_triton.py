"""Sum and largest element of rows in Triton, from one read; and their gradient.

Not measured on a GPU yet.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseline.primitives.triton.launch import Wrap, launch
from fuseline.primitives.triton.rms import divide
from fuseline.primitives.triton.row_sums import (
    add_pairs,
    block,
    places,
    row_sums,
    rows_of_program,
    terms,
    whole,
)
from fuseline.primitives.triton.rows import blocks_meta, divide_up, vec


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["n_rows", "n_cols", "x_stride"])
def _fwd_kernel(
    x_ptr, sum_ptr, amax_ptr, count_ptr, n_rows, n_cols, x_stride,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Owns ROWS rows, in blocks: reads x, writes the sums, the largest and how many are as large.

    The last where there is a place.
    """
    element: tl.constexpr = x_ptr.dtype.element_ty
    acc: tl.constexpr = tl.float64 if element == tl.float64 else tl.float32
    rows, live = rows_of_program(n_rows, ROWS)
    total = tl.zeros((ROWS,), tl.float64)
    lost = tl.zeros((ROWS,), tl.float64)
    most = tl.full((ROWS,), float("-inf"), acc)
    count = tl.zeros((ROWS,), tl.int64)
    for start in range(0, n_cols, BLOCK):
        cols, inside = block(start, n_cols, VEC, BLOCK)
        mask = live[:, None] & inside[None, :]
        x = tl.load(places(x_ptr, rows, x_stride, cols, VEC), mask, other=0.0)
        part, part_lost = row_sums(terms(x))
        total, lost = add_pairs(total, lost, part, part_lost)
        h = tl.where(mask, x.to(acc), float("-inf"))
        largest = tl.reduce(h, 1, _larger)
        before = most
        most = _larger(before, largest)
        if count_ptr is not None:
            equal = tl.sum((mask & (h == largest[:, None])).to(tl.int32), 1)
            count = tl.where(before == most, count, 0) + tl.where(largest == most, equal, 0)
    tl.store(sum_ptr + rows, whole(total, lost).to(acc).to(element), live)
    tl.store(amax_ptr + rows, most.to(element), live)
    if count_ptr is not None:
        tl.store(count_ptr + rows, count.to(tl.float64), live)


@triton.jit(do_not_specialize=["n_rows", "n_cols", "x_stride"])
def _bwd_kernel(
    dsum_ptr, damax_ptr, x_ptr, amax_ptr, count_ptr, dx_ptr, n_rows, n_cols, x_stride,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Owns a block of ROWS rows: reads x and what its rows have one of, writes dx."""
    element: tl.constexpr = x_ptr.dtype.element_ty
    acc: tl.constexpr = tl.float64 if element == tl.float64 else tl.float32
    rows, live = rows_of_program(n_rows, ROWS)
    cols, inside = block(tl.program_id(1) * BLOCK, n_cols, VEC, BLOCK)
    mask = live[:, None] & inside[None, :]
    x = tl.load(places(x_ptr, rows, x_stride, cols, VEC), mask, other=0.0).to(acc)
    dsum = tl.load(dsum_ptr + rows, live, other=0.0).to(acc)
    damax = tl.load(damax_ptr + rows, live, other=0.0).to(acc)
    amax = tl.load(amax_ptr + rows, live, other=0.0).to(acc)
    count = tl.load(count_ptr + rows, live, other=1.0).to(acc)
    most = dsum + divide(damax, count)
    least = tl.where(count == 0.0, amax, dsum)  # NaN, which nothing equals
    dx = tl.where(x == amax[:, None], most[:, None], least[:, None])
    tl.store(places(dx_ptr, rows, n_cols, cols, VEC), dx.to(element), mask)


def fwd(
    x: torch.Tensor, save_count: bool, wrap: Wrap | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The sums (rows,), the largest (rows,) and, if asked for, how many are as large, in fp64.

    x: (rows, n_cols), n_cols > 0, last stride 1, any row stride. `wrap` is applied to the kernel
    before its launch.
    """
    n_rows, n_cols = x.shape
    total, amax = x.new_empty((n_rows,)), x.new_empty((n_rows,))
    count = x.new_empty((n_rows,), dtype=torch.float64) if save_count else None
    if n_rows > 0:
        counts = (n_cols, x.stride(0))
        meta = {"VEC": vec(x, *counts), **blocks_meta(n_cols)}
        grid = (divide_up(n_rows, meta["ROWS"]),)
        launch(_fwd_kernel, grid, (x, total, amax, count, n_rows, *counts), meta, wrap)
    return total, amax, count


def bwd(
    dsum: torch.Tensor,
    damax: torch.Tensor,
    x: torch.Tensor,
    amax: torch.Tensor,
    count: torch.Tensor,
    wrap: Wrap | None = None,
) -> torch.Tensor:
    """dx of x's shape and dtype; x as of `fwd`, all others (rows,), contiguous."""
    n_rows, n_cols = x.shape
    dx = x.new_empty(x.shape)
    if n_rows > 0:
        counts = (n_cols, x.stride(0))
        meta = {"VEC": vec(x, *counts), **blocks_meta(n_cols)}
        grid = (divide_up(n_rows, meta["ROWS"]), divide_up(n_cols, meta["BLOCK"]))
        args = (dsum, damax, x, amax, count, dx, n_rows, *counts)
        launch(_bwd_kernel, grid, args, meta, wrap)
    return dx
