"""The softmax of scaled and masked rows in Triton, its logarithm, and their gradients.

Rows up to 16384 columns (8192 of fp64) are held by one program, longer ones read twice. Not
measured on a GPU yet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from fuseline.core import native
from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.rms import divide, float64_of
from fuseline.primitives.triton.row_sums import block, places, tile
from fuseline.primitives.triton.rows import divide_up, halves, power_of_2, vec, whole_meta

# The longest rows held by one program, in bytes of what they are computed in; elements that one
# holds, or takes at once of longer rows.
_WHOLE, _SIZE = 65536, 4096
_DIMS = 4  # leading dimensions of a mask, at most
_COUNTS = [
    "n_rows", "n_cols", "x_stride", "dy_stride", "y_stride", "queries", "scale_high", "scale_low",
    "size1", "size2", "size3", "step0", "step1", "step2", "step3", "last",
]  # fmt: skip


@triton.jit
def _exp(v):
    """Return e^v of a v <= 0, -Inf or NaN. The hardware's is
    2^v, and v * log2(e) in fp32 too short.
    """
    if v.dtype == tl.float64:
        e = tl.exp(v)
    else:
        v = tl.maximum(v, -200.0, propagate_nan=tl.PropagateNan.ALL)  # Inf would lose NaN
        log2e = tl.full((), 1.4426950216293335, tl.float32) + tl.zeros_like(v)
        t = v * log2e
        rest = tl.fma(v, log2e, -t) + v * 1.925963033500315e-08
        e = tl.exp2(t)
        e = tl.fma(e, rest * 0.6931471805599453, e)
    return e


@triton.jit
def _result(shifted, e, total, LOG: tl.constexpr):
    """Return y of z - max(z), e = exp of it, or None, and the sum
    of that; one logarithm a row is fp64.
    """
    if LOG:
        y = shifted - tl.log(total.to(tl.float64)).to(shifted.dtype)
    else:
        y = e * divide(tl.zeros_like(total) + 1.0, total)
    return y


@triton.jit
def _visible(rows, n_cols, queries):
    """Return the columns of the rows that causal does not hide:
    the last row of a matrix sees all.
    """
    return tl.where(queries > 0, rows % tl.maximum(queries, 1) + 1 + n_cols - queries, n_cols)


@triton.jit
def _mask_rows(
    mask_ptr, rows, size1, size2, size3, step0, step1, step2, step3, VEC: tl.constexpr
):  # fmt: skip
    """Return the pointers to the first elements of the mask's rows."""
    third = rows // size3
    second = third // size2
    mask_ptr += rows % size3 * (step3 // VEC * VEC) + third % size2 * (step2 // VEC * VEC)
    return mask_ptr + second % size1 * (step1 // VEC * VEC) + second // size1 * (step0 // VEC * VEC)


@triton.jit(do_not_specialize=_COUNTS)
def _fwd_kernel(
    x_ptr, mask_ptr, y_ptr, n_rows, n_cols, x_stride, queries, scale_high, scale_low,
    size1, size2, size3, step0, step1, step2, step3, last,
    LOG: tl.constexpr, VEC: tl.constexpr, MASK_VEC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process ROWS rows: read what is seen of x and the mask, write y."""
    acc: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    scale = float64_of(scale_high, scale_low).to(acc)
    rows, _, cols, inside = tile(n_rows, n_cols, VEC, ROWS, BLOCK)
    seen = inside & (cols[None, :] < _visible(rows, n_cols, queries)[:, None])
    z = tl.load(places(x_ptr, rows, x_stride, cols, VEC), seen, other=0.0).to(acc) * scale
    if mask_ptr is not None:
        steps = cols if MASK_VEC > 0 else cols * last
        starts = _mask_rows(
            mask_ptr, rows, size1, size2, size3, step0, step1, step2, step3, max(MASK_VEC, 1)
        )
        z += tl.load(starts[:, None] + steps[None, :], seen, other=0.0).to(acc)
    z = tl.where(seen, z, float("-inf"))
    shifted = z - tl.max(z, 1)[:, None]
    e = _exp(shifted)
    # Columns that do not exist would make NaN of rows that see nothing.
    total = tl.sum(tl.where(inside, e, 0.0), 1)[:, None]
    y = _result(shifted, e, total, LOG)
    y_ptrs = places(y_ptr, rows, n_cols, cols, VEC)
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), inside)


@triton.jit
def _long_z(
    x_row, mask_row, start, n_cols, seen, scale, last,
    VEC: tl.constexpr, MASK_VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return a block of a long row, and which of its columns exist."""
    cols, inside = block(start, n_cols, VEC, BLOCK)
    visible = inside & (cols < seen)
    z = tl.load(x_row + cols, visible, other=0.0).to(scale.dtype) * scale
    if mask_row is not None:
        steps = cols if MASK_VEC > 0 else cols * last
        z += tl.load(mask_row + steps, visible, other=0.0).to(scale.dtype)
    return tl.where(visible, z, float("-inf")), cols, inside


@triton.jit(do_not_specialize=_COUNTS)
def _fwd_long_kernel(
    x_ptr, mask_ptr, y_ptr, n_rows, n_cols, x_stride, queries, scale_high, scale_low,
    size1, size2, size3, step0, step1, step2, step3, last,
    LOG: tl.constexpr, VEC: tl.constexpr, MASK_VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process one row: read what is seen of x and the mask twice, backwards at last; write y."""
    acc: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    scale = float64_of(scale_high, scale_low).to(acc)
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    mask_row = mask_ptr
    if mask_ptr is not None:
        mask_row = _mask_rows(
            mask_ptr, row, size1, size2, size3, step0, step1, step2, step3, max(MASK_VEC, 1)
        )
    seen = _visible(row, n_cols, queries)
    most = tl.full((), float("-inf"), acc)
    total = tl.zeros((), acc)
    for start in range(0, tl.minimum(seen, n_cols), BLOCK):
        z, _, _ = _long_z(x_row, mask_row, start, n_cols, seen, scale, last, VEC, MASK_VEC, BLOCK)
        higher = tl.maximum(most, tl.max(z, 0))
        # Where all is -Inf, exp(-Inf) is to be 0.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * _exp(most - shift) + tl.sum(_exp(z - shift), 0)
        most = higher
    blocks = (n_cols + BLOCK - 1) // BLOCK
    for i in range(blocks):
        z, cols, inside = _long_z(
            x_row, mask_row, (blocks - 1 - i) * BLOCK, n_cols, seen, scale, last,
            VEC, MASK_VEC, BLOCK,
        )  # fmt: skip
        shifted = z - most
        y = _result(shifted, None if LOG else _exp(shifted), total, LOG)
        y_ptrs = y_ptr + row * (n_cols // VEC * VEC) + cols
        tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), inside)


@triton.jit
def _term(dy, y, LOG: tl.constexpr):
    return dy if LOG else dy * y


@triton.jit
def _dz(dy, y, total, LOG: tl.constexpr):
    return dy - _exp(y) * total if LOG else y * (dy - total)


@triton.jit(do_not_specialize=_COUNTS)
def _bwd_kernel(
    dy_ptr, y_ptr, dx_ptr, n_rows, n_cols, dy_stride, y_stride, queries, scale_high, scale_low,
    LOG: tl.constexpr, VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process ROWS rows: read dy and y, write dx."""
    acc: tl.constexpr = tl.float64 if y_ptr.dtype.element_ty == tl.float64 else tl.float32
    scale = float64_of(scale_high, scale_low).to(acc)
    rows, _, cols, inside = tile(n_rows, n_cols, VEC, ROWS, BLOCK)
    dy = tl.load(places(dy_ptr, rows, dy_stride, cols, VEC), inside, other=0.0).to(acc)
    y = tl.load(places(y_ptr, rows, y_stride, cols, VEC), inside, other=0.0).to(acc)
    total = tl.sum(_term(dy, y, LOG), 1)[:, None]
    seen = cols[None, :] < _visible(rows, n_cols, queries)[:, None]
    dx = tl.where(seen, _dz(dy, y, total, LOG) * scale, 0.0)
    tl.store(places(dx_ptr, rows, n_cols, cols, VEC), dx.to(dx_ptr.dtype.element_ty), inside)


@triton.jit(do_not_specialize=_COUNTS)
def _bwd_long_kernel(
    dy_ptr, y_ptr, dx_ptr, n_rows, n_cols, dy_stride, y_stride, queries, scale_high, scale_low,
    LOG: tl.constexpr, VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process one row: read dy and y twice, the second time
    backwards from what caches still hold.
    """
    acc: tl.constexpr = tl.float64 if y_ptr.dtype.element_ty == tl.float64 else tl.float32
    scale = float64_of(scale_high, scale_low).to(acc)
    row = tl.program_id(0).to(tl.int64)
    dy_row = dy_ptr + row * (dy_stride // VEC * VEC)
    y_row = y_ptr + row * (y_stride // VEC * VEC)
    sums = tl.zeros((BLOCK,), acc)
    for start in range(0, n_cols, BLOCK):
        cols, inside = block(start, n_cols, VEC, BLOCK)
        dy = tl.load(dy_row + cols, inside, other=0.0).to(acc)
        y = tl.load(y_row + cols, inside, other=0.0).to(acc)
        sums += _term(dy, y, LOG)
    total = tl.sum(sums, 0)
    seen = _visible(row, n_cols, queries)
    blocks = (n_cols + BLOCK - 1) // BLOCK
    for i in range(blocks):
        cols, inside = block((blocks - 1 - i) * BLOCK, n_cols, VEC, BLOCK)
        dy = tl.load(dy_row + cols, inside, other=0.0).to(acc)
        y = tl.load(y_row + cols, inside, other=0.0).to(acc)
        dx = tl.where(cols < seen, _dz(dy, y, total, LOG) * scale, 0.0)
        dx_ptrs = dx_ptr + row * (n_cols // VEC * VEC) + cols
        tl.store(dx_ptrs, dx.to(dx_ptr.dtype.element_ty), inside)


class _Steps(NamedTuple):
    """Where a mask's rows lie: the sizes of all leading dimensions but the first, all strides."""

    mask: torch.Tensor
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    last: int


def _steps(mask: torch.Tensor, shape: torch.Size) -> _Steps:
    """Return the mask over rows of that shape: its leading
    dimensions, those collapsed that can be.
    """
    wide = mask.resolve_neg().expand(shape)
    sizes, steps = [1], [0]
    for size, step in zip(shape[:-1], wide.stride()[:-1], strict=True):
        if size == 1:
            continue
        if sizes[-1] == 1:
            sizes[-1], steps[-1] = size, step
        elif steps[-1] == size * step:
            sizes[-1], steps[-1] = sizes[-1] * size, step
        else:
            sizes.append(size)
            steps.append(step)
    if len(sizes) > _DIMS:
        native.count_copy()
        return _steps(wide.contiguous(), shape)
    more = _DIMS - len(sizes)
    return _Steps(mask, (*(1,) * more, *sizes)[1:], (*(0,) * more, *steps), wide.stride(-1))


def fwd(
    x: torch.Tensor,
    shape: torch.Size,
    mask: torch.Tensor | None,
    queries: int,
    scale: float,
    log: bool,
    wrap: Wrap | None = None,
) -> torch.Tensor:
    """Return y of x's shape and dtype.

    x: (rows, n_cols), last stride 1, any row stride; it was of `shape`, to which the mask
    broadcasts. queries: rows of a causal matrix, or 0. `wrap` is applied to the kernel before its
    launch.
    """
    y = x.new_empty(x.shape)
    where = _Steps(x, (1,) * (_DIMS - 1), (0,) * _DIMS, 1) if mask is None else _steps(mask, shape)
    meta = {
        "LOG": log,
        "VEC": vec(x, x.shape[1], x.stride(0)),
        "MASK_VEC": vec(where.mask, *where.steps) if where.last == 1 else 0,
    }
    placed = (*where.sizes, *where.steps, where.last)
    tensors = (x, None if mask is None else where.mask, y)
    counts = (x.stride(0), queries, *halves(scale), *placed)
    _run(_fwd_kernel, _fwd_long_kernel, tensors, counts, meta, wrap)
    return y


def bwd(
    dy: torch.Tensor,
    y: torch.Tensor,
    queries: int,
    scale: float,
    log: bool,
    wrap: Wrap | None = None,
) -> torch.Tensor:
    """Return dx of y's shape and dtype; dy and y as x of `fwd`."""
    dx = y.new_empty(y.shape)
    strides = (dy.stride(0), y.stride(0))
    meta = {"LOG": log, "VEC": vec(y, y.shape[1], *strides)}
    counts = (*strides, queries, *halves(scale))
    _run(_bwd_kernel, _bwd_long_kernel, (dy, y, dx), counts, meta, wrap)
    return dx


def _run(
    whole: Any,
    long: Any,
    tensors: tuple[torch.Tensor | None, ...],
    counts: tuple[int, ...],
    meta: dict[str, int],
    wrap: Wrap | None,
) -> None:
    first = tensors[0]
    assert first is not None
    n_rows, n_cols = first.shape
    args = (*tensors, n_rows, n_cols, *counts)
    if n_rows == 0 or n_cols == 0:
        return
    if n_cols * max(4, first.element_size()) <= _WHOLE:
        size = max(_SIZE, power_of_2(n_cols))
        tiles = whole_meta(n_cols, size, 8 if size == _SIZE else 16)
        launch(whole, (divide_up(n_rows, tiles["ROWS"]),), args, meta | tiles, wrap)
    else:
        launch(long, (n_rows,), args, meta | {"BLOCK": _SIZE, "num_warps": 8}, wrap)
