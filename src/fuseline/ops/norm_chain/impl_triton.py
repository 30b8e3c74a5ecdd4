"""The norm chain in Triton: y = x * sum^7, dx = dy * sum^7 + 7 * sum^6 * sum(dy * x).

Rows that fit the registers of one program are read once; longer rows in blocks, twice. Not
measured on a GPU yet.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.row_sums import (
    add_pairs,
    block,
    places,
    row_sums,
    terms,
    tile,
    whole,
)
from fuseline.primitives.triton.rows import divide_up, power_of_2, vec, whole_meta

_COUNTS = ["n_rows", "n_cols", "x_stride", "dy_stride"]
# Rows in registers up to WHOLE elements, SIZE elements a program.
_WHOLE, _SIZE, _WARPS = 16384, 4096, 8


@triton.jit
def _sixth(total):
    square = total * total
    return square * square * square


@triton.jit
def _seventh(total, lost):
    """Return (total + lost)^7, which `lost` would change by seven times itself."""
    power = _sixth(total) * total
    return tl.where(power == 0.0, power, power + 7 * power * (lost / total))


@triton.jit
def _fits(v, C: tl.constexpr):
    """Return whether C has v, of fp64, with all its bits."""
    magnitude = tl.abs(v)
    if C == tl.float64:  # noqa: SIM300
        return (v == 0.0) | ((magnitude >= 2.2250738585072014e-308) & (v - v == 0.0))
    return (v == 0.0) | ((magnitude >= 1.1754943508222875e-38) & (magnitude <= 3.4028234e38))


@triton.jit
def _next(first, total, found):
    """Return the next step's sum: of a finite first sum the square of this one's, else `found`."""
    return tl.where(first - first == 0.0, total * total, found)


@triton.jit
def _agreed(total, second):
    """Return the sum to save: NaN where infinite terms of the second sum are of both signs."""
    return tl.where((total - total != 0.0) & (second != second), second, total)


@triton.jit
def _factor(total):
    """Return what to multiply x by in sum(dy * x): an infinite sum makes each next x infinite."""
    return tl.where(total - total == 0.0, 1.0, tl.abs(total))


@triton.jit
def _gradient(dy, total, dot, C: tl.constexpr):
    """Return dx where C has no such power or shift: this overflows last."""
    return ((dy.to(tl.float64) * total + 7 * dot) * _sixth(total)).to(C)


@triton.jit(do_not_specialize=_COUNTS)
def _fwd_kernel(
    x_ptr, y_ptr, sum_ptr, n_rows, n_cols, x_stride,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process ROWS whole rows: read x once, write y and, unless null, the sums."""
    C: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    rows, live, cols, mask = tile(n_rows, n_cols, VEC, ROWS, BLOCK)
    x = tl.load(places(x_ptr, rows, x_stride, cols, VEC), mask, other=0.0)
    total, lost = row_sums(terms(x))
    saved = whole(total, lost)
    power = _seventh(total, lost)
    y = x.to(C) * power.to(C)[:, None]
    hard = live & ~_fits(power, C)
    if tl.sum(hard.to(tl.int32), 0) > 0:  # the chain as it is written
        h = tl.where(mask, x.to(tl.float64) * saved[:, None], 0.0)
        second = _next(saved, saved, tl.sum(h, 1))
        h = tl.where(mask, h * second[:, None], 0.0)
        h *= _next(saved, second, tl.sum(h, 1))[:, None]
        saved = _agreed(saved, second)
        y = tl.where(hard[:, None], h.to(C), y)
    if sum_ptr is not None:
        tl.store(sum_ptr + rows, saved, live)
    tl.store(places(y_ptr, rows, n_cols, cols, VEC), y.to(y_ptr.dtype.element_ty), mask)


@triton.jit(do_not_specialize=_COUNTS)
def _bwd_kernel(
    dy_ptr, x_ptr, sum_ptr, dx_ptr, n_rows, n_cols, dy_stride, x_stride,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process ROWS whole rows: read dy and x once, write dx."""
    C: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    rows, live, cols, mask = tile(n_rows, n_cols, VEC, ROWS, BLOCK)
    x = tl.load(places(x_ptr, rows, x_stride, cols, VEC), mask, other=0.0)
    dy = tl.load(places(dy_ptr, rows, dy_stride, cols, VEC), mask, other=0.0)
    total = tl.load(sum_ptr + rows, live, other=0.0)
    products = terms(dy) * terms(x)
    factor = _factor(total).to(products.dtype)[:, None]
    dot, lost = row_sums(tl.where(mask, products * factor, 0.0))
    dot = whole(dot, lost)
    power = _sixth(total) * total
    shift = 7 * _sixth(total) * dot
    dx = dy.to(C) * power.to(C)[:, None] + shift.to(C)[:, None]
    hard = live & ~(_fits(power, C) & _fits(shift, C))
    if tl.sum(hard.to(tl.int32), 0) > 0:
        dx = tl.where(hard[:, None], _gradient(dy, total[:, None], dot[:, None], C), dx)
    tl.store(places(dx_ptr, rows, n_cols, cols, VEC), dx.to(dx_ptr.dtype.element_ty), mask)


@triton.jit
def _sum_of_products(
    a_row, b_row, factor, n_cols, VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the sum of a * b * factor over a row in blocks, and
    what its additions lost; b None: 1.
    """
    total = tl.zeros((BLOCK,), tl.float64)
    lost = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols, mask = block(start, n_cols, VEC, BLOCK)
        v = terms(tl.load(a_row + cols, mask, other=0.0))
        if b_row is not None:
            v *= terms(tl.load(b_row + cols, mask, other=0.0, eviction_policy="evict_first"))
        v = tl.where(mask, v.to(tl.float64) * factor, 0.0)
        if a_row.dtype.element_ty == tl.float64:
            total, lost = add_pairs(total, lost, v, 0.0)
        else:
            total += v
    if a_row.dtype.element_ty == tl.float64:
        all_of, rest = tl.reduce((total, lost), 0, add_pairs)
    else:
        all_of = tl.sum(total, 0)
        rest = tl.sum(lost, 0)
    return all_of, rest


@triton.jit(do_not_specialize=_COUNTS)
def _fwd_long_kernel(
    x_ptr, y_ptr, sum_ptr, n_cols, x_stride, VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process one row: read x twice, the second time backwards from what the caches still hold."""
    C: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    total, lost = _sum_of_products(x_row, None, 1.0, n_cols, VEC, BLOCK)
    saved = whole(total, lost)
    power = _seventh(total, lost)
    hard = ~_fits(power, C)
    first, second, third = saved, saved, saved
    if hard:  # the chain as it is written
        found, lost = _sum_of_products(x_row, None, first, n_cols, VEC, BLOCK)
        second = _next(first, first, found)
        found, lost = _sum_of_products(x_row, None, first * second, n_cols, VEC, BLOCK)
        third = _next(first, second, found)
        saved = _agreed(saved, second)
    if sum_ptr is not None:
        tl.store(sum_ptr + row, saved)
    blocks = (n_cols + BLOCK - 1) // BLOCK
    for i in range(blocks):
        cols, mask = block((blocks - 1 - i) * BLOCK, n_cols, VEC, BLOCK)
        x = tl.load(x_row + cols, mask, other=0.0, eviction_policy="evict_first")
        y = x.to(C) * power.to(C)
        if hard:
            y = (x.to(tl.float64) * first * second * third).to(C)
        tl.store(y_ptr + row * (n_cols // VEC * VEC) + cols, y.to(y_ptr.dtype.element_ty), mask)


@triton.jit(do_not_specialize=_COUNTS)
def _bwd_long_kernel(
    dy_ptr, x_ptr, sum_ptr, dx_ptr, n_cols, dy_stride, x_stride,
    VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process one row: read dy and x, then dy again, backwards from what the caches still hold."""
    C: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    dy_row = dy_ptr + row * (dy_stride // VEC * VEC)
    total = tl.load(sum_ptr + row)
    dot, lost = _sum_of_products(dy_row, x_row, _factor(total), n_cols, VEC, BLOCK)
    dot = whole(dot, lost)
    power = _sixth(total) * total
    shift = 7 * _sixth(total) * dot
    hard = ~(_fits(power, C) & _fits(shift, C))
    blocks = (n_cols + BLOCK - 1) // BLOCK
    for i in range(blocks):
        cols, mask = block((blocks - 1 - i) * BLOCK, n_cols, VEC, BLOCK)
        dy = tl.load(dy_row + cols, mask, other=0.0, eviction_policy="evict_first")
        dx = dy.to(C) * power.to(C) + shift.to(C)
        if hard:
            dx = _gradient(dy, total, dot, C)
        tl.store(dx_ptr + row * (n_cols // VEC * VEC) + cols, dx.to(dx_ptr.dtype.element_ty), mask)


def fwd(
    x: torch.Tensor, save_sum: bool, wrap: Wrap | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return y of x's shape and dtype, and the sums (rows,) in fp64 if requested.

    x: (rows, n_cols), last stride 1, any row stride. `wrap` is applied to the kernel before its
    launch.
    """
    y = x.new_empty(x.shape)
    total = x.new_empty(x.shape[:1], dtype=torch.float64) if save_sum else None
    _run(_fwd_kernel, _fwd_long_kernel, (x, y, total), (x.stride(0),), wrap)
    return y, total


def bwd(
    dy: torch.Tensor, x: torch.Tensor, total: torch.Tensor, wrap: Wrap | None = None
) -> torch.Tensor:
    """Return dx of x's shape and dtype; dy and x as x of `fwd`, total as it gave it."""
    dx = x.new_empty(x.shape)
    strides = (dy.stride(0), x.stride(0))
    _run(_bwd_kernel, _bwd_long_kernel, (dy, x, total, dx), strides, wrap)
    return dx


def _run(
    whole_rows: Any,
    long_rows: Any,
    tensors: tuple[torch.Tensor | None, ...],
    strides: tuple[int, ...],
    wrap: Wrap | None,
) -> None:
    first = tensors[0]
    assert first is not None
    n_rows, n_cols = first.shape
    meta = {"VEC": vec(first, n_cols, *strides)}
    if n_rows > 0 and n_cols <= _WHOLE:
        meta |= whole_meta(n_cols, max(_SIZE, power_of_2(max(n_cols, 1))), _WARPS)
        grid = (divide_up(n_rows, meta["ROWS"]),)
        launch(whole_rows, grid, (*tensors, n_rows, n_cols, *strides), meta, wrap)
    elif n_rows > 0:
        meta |= {"BLOCK": _SIZE, "num_warps": _WARPS}
        launch(long_rows, (n_rows,), (*tensors, n_cols, *strides), meta, wrap)
