"""Sum and cosine of rows in Triton, from one read; and their gradient.

Not measured on a GPU yet.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseline.primitives.triton.launch import Wrap, launch
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
from fuseline.primitives.triton.trig import cos_sin


@triton.jit(do_not_specialize=["n_rows", "n_cols", "x_stride"])
def _fwd_kernel(
    x_ptr, sum_ptr, cos_ptr, n_rows, n_cols, x_stride,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Owns ROWS rows, in blocks: reads x, writes the sums and cos."""
    element: tl.constexpr = x_ptr.dtype.element_ty
    acc: tl.constexpr = tl.float64 if element == tl.float64 else tl.float32
    rows, live = rows_of_program(n_rows, ROWS)
    total = tl.zeros((ROWS,), tl.float64)
    lost = tl.zeros((ROWS,), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols, inside = block(start, n_cols, VEC, BLOCK)
        mask = live[:, None] & inside[None, :]
        x = tl.load(places(x_ptr, rows, x_stride, cols, VEC), mask, other=0.0)
        part, part_lost = row_sums(terms(x))
        total, lost = add_pairs(total, lost, part, part_lost)
        cos, _ = cos_sin(x.to(acc), element)
        tl.store(places(cos_ptr, rows, n_cols, cols, VEC), cos.to(element), mask)
    tl.store(sum_ptr + rows, whole(total, lost).to(acc).to(element), live)


@triton.jit(do_not_specialize=["n_rows", "n_cols", "dcos_stride", "x_stride"])
def _bwd_kernel(
    dsum_ptr, dcos_ptr, x_ptr, dx_ptr, n_rows, n_cols, dcos_stride, x_stride,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Owns a block of ROWS rows: reads dsum, dcos and x, writes dx."""
    element: tl.constexpr = x_ptr.dtype.element_ty
    acc: tl.constexpr = tl.float64 if element == tl.float64 else tl.float32
    rows, live = rows_of_program(n_rows, ROWS)
    cols, inside = block(tl.program_id(1) * BLOCK, n_cols, VEC, BLOCK)
    mask = live[:, None] & inside[None, :]
    x = tl.load(places(x_ptr, rows, x_stride, cols, VEC), mask, other=0.0).to(acc)
    dcos = tl.load(places(dcos_ptr, rows, dcos_stride, cols, VEC), mask, other=0.0).to(acc)
    dsum = tl.load(dsum_ptr + rows, live, other=0.0).to(acc)
    _, sin = cos_sin(x, element)
    dx = dsum[:, None] - dcos * sin
    tl.store(places(dx_ptr, rows, n_cols, cols, VEC), dx.to(element), mask)


def fwd(x: torch.Tensor, wrap: Wrap | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums (rows,) and cos(x), of x's dtype.

    x: (rows, n_cols), last stride 1, any row stride. `wrap` is applied to the kernel before its
    launch.
    """
    n_rows, n_cols = x.shape
    total, cos = x.new_empty((n_rows,)), x.new_empty(x.shape)
    if n_rows > 0:
        counts = (n_cols, x.stride(0))
        meta = {"VEC": vec(x, *counts), **blocks_meta(n_cols)}
        grid = (divide_up(n_rows, meta["ROWS"]),)
        launch(_fwd_kernel, grid, (x, total, cos, n_rows, *counts), meta, wrap)
    return total, cos


def bwd(
    dsum: torch.Tensor, dcos: torch.Tensor, x: torch.Tensor, wrap: Wrap | None = None
) -> torch.Tensor:
    """dx of x's shape and dtype; dsum (rows,) contiguous, dcos and x as x of `fwd`."""
    n_rows, n_cols = x.shape
    dx = x.new_empty(x.shape)
    if x.numel() > 0:
        counts = (n_cols, dcos.stride(0), x.stride(0))
        meta = {"VEC": vec(x, *counts), **blocks_meta(n_cols)}
        grid = (divide_up(n_rows, meta["ROWS"]), divide_up(n_cols, meta["BLOCK"]))
        launch(_bwd_kernel, grid, (dsum, dcos, x, dx, n_rows, *counts), meta, wrap)
    return dx
