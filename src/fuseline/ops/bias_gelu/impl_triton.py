"""GELU of x + bias in Triton, both formulas, and its gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.gelu import gate, single_share
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.parameters import TILES, finish
from fuseline.primitives.triton.row_sums import block, places
from fuseline.primitives.triton.rows import divide_up, processors, vec, whole_meta

_BLOCK, _PROGRAMS = 256, 8  # columns of a backward's program, and programs on each SM


@triton.jit(do_not_specialize=["n_rows", "n_cols", "x_stride", "blocks", "n_bias"])
def _fwd_kernel(
    x_ptr, bias_ptr, y_ptr, n_rows, n_cols, x_stride, blocks, n_bias,
    TANH: tl.constexpr, EVEN: tl.constexpr, ACROSS: tl.constexpr, VEC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process a block of ROWS rows, all of which exists if EVEN: read x and the bias, write y.

    The `blocks` of a row are neighbours, so that memory is read and written in order. ACROSS: a row
    has one bias, row r that of r % n_bias.
    """
    element: tl.constexpr = x_ptr.dtype.element_ty
    acc: tl.constexpr = tl.float64 if element == tl.float64 else tl.float32
    rows = (tl.program_id(0) // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols, inside = block(tl.program_id(0) % blocks * BLOCK, n_cols, VEC, BLOCK)
    if EVEN:
        mask = None
        x = tl.load(places(x_ptr, rows, x_stride, cols, VEC)).to(acc)
    else:
        mask = (rows < n_rows)[:, None] & inside[None, :]
        x = tl.load(places(x_ptr, rows, x_stride, cols, VEC), mask, other=0.0).to(acc)
    if ACROSS:
        bias = tl.load(bias_ptr + rows % n_bias).to(acc)[:, None]
    elif EVEN:
        bias = tl.load(bias_ptr + cols).to(acc)[None, :]
    else:
        bias = tl.load(bias_ptr + cols, inside, other=0.0).to(acc)[None, :]
    if element == tl.float32:
        h, share = single_share(x, bias, TANH)
    else:
        h, share, _ = gate(x, bias, TANH, element == tl.float64)
    tl.store(places(y_ptr, rows, n_cols, cols, VEC), (h * share).to(element), mask)


@triton.jit(do_not_specialize=["n_rows", "n_cols", "dy_stride", "x_stride"])
def _bwd_kernel(
    dy_ptr, x_ptr, bias_ptr, dx_ptr, partial_ptr, n_rows, n_cols, dy_stride, x_stride,
    TANH: tl.constexpr, VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process BLOCK columns of every n-th tile of ROWS rows: read dy, x and the bias, write dx.

    And its part of dbias, each where there is a place.
    """
    element: tl.constexpr = x_ptr.dtype.element_ty
    acc: tl.constexpr = tl.float64 if element == tl.float64 else tl.float32
    cols, inside = block(tl.program_id(0) * BLOCK, n_cols, VEC, BLOCK)
    bias = tl.load(bias_ptr + cols, inside, other=0.0).to(acc)[None, :]
    sums = tl.zeros((ROWS, BLOCK), acc)
    turn = tl.zeros((ROWS, BLOCK), acc)
    tiles = (n_rows + ROWS - 1) // ROWS
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        mask = (rows < n_rows)[:, None] & inside[None, :]
        x = tl.load(places(x_ptr, rows, x_stride, cols, VEC), mask, other=0.0).to(acc)
        dy = tl.load(places(dy_ptr, rows, dy_stride, cols, VEC), mask, other=0.0).to(acc)
        h, share, slope = gate(x, bias, TANH, False)
        dx = dy * (share + h * slope)
        if dx_ptr is not None:
            tl.store(places(dx_ptr, rows, n_cols, cols, VEC), dx.to(element), mask)
        turn += dx
        flush = tile // tl.num_programs(1) % TILES == 0
        sums += tl.where(flush, turn, 0.0)
        turn = tl.where(flush, 0.0, turn)
    if partial_ptr is not None:
        part = partial_ptr + tl.program_id(1).to(tl.int64) * (n_cols // VEC * VEC) + cols
        tl.store(part, tl.sum(sums + turn, 0), inside)


def _size(x: torch.Tensor) -> int:
    """Return the elements a program of 4 warps holds at once: 8 a thread, 4 of fp64."""
    return 512 if x.element_size() == 8 else 1024


def fwd(
    x: torch.Tensor,
    bias: torch.Tensor,
    tanh: bool,
    across: bool = False,
    wrap: Wrap | None = None,
) -> torch.Tensor:
    """Return y of x's shape and dtype.

    x: (rows, n_cols), last stride 1, any row stride; bias (n_cols,), contiguous, or, if `across`,
    one for each row, which repeat. `wrap` is applied to the kernel before its launch.
    """
    n_rows, n_cols = x.shape
    y = x.new_empty(x.shape)
    if x.numel() > 0:
        counts, size = (n_cols, x.stride(0)), _size(x)
        meta = {"TANH": tanh, "VEC": vec(x, *counts), **whole_meta(min(n_cols, size), size, 4)}
        meta["EVEN"] = n_rows % meta["ROWS"] == 0 and n_cols % meta["BLOCK"] == 0
        blocks = divide_up(n_cols, meta["BLOCK"])
        grid = (divide_up(n_rows, meta["ROWS"]) * blocks,)
        meta["ACROSS"] = across
        launch(_fwd_kernel, grid, (x, bias, y, n_rows, *counts, blocks, bias.numel()), meta, wrap)
    return y


def bwd(
    dy: torch.Tensor,
    x: torch.Tensor,
    bias: torch.Tensor,
    tanh: bool,
    need_dx: bool,
    need_dbias: bool,
    wrap: Wrap | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return dx and dbias, each None unless needed; deterministic. dy and x as x of `fwd`."""
    n_rows, n_cols = x.shape
    counts = (n_cols, dy.stride(0), x.stride(0))
    meta = {"TANH": tanh, "VEC": vec(x, *counts), "ROWS": _size(x) // _BLOCK, "BLOCK": _BLOCK}
    meta["num_warps"] = 4
    columns = max(1, divide_up(n_cols, _BLOCK))
    most = max(1, processors(x.device) * _PROGRAMS // columns)
    n_partials: int = torch.sym_min(divide_up(n_rows, meta["ROWS"]), most)
    dx = x.new_empty(x.shape) if need_dx else None
    acc = torch.promote_types(x.dtype, torch.float32)
    partial = x.new_empty((n_partials, n_cols), dtype=acc) if need_dbias else None
    if x.numel() > 0 and (need_dx or need_dbias):
        args = (dy, x, bias, dx, partial, n_rows, *counts)
        launch(_bwd_kernel, (columns, n_partials), args, meta, wrap)
    if partial is None:
        return dx, None
    (dbias,) = finish(partial, (bias.dtype,), wrap)
    return dx, dbias
