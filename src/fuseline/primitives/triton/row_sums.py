"""Rows in tiles of a program, and sums of their terms."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_pairs(a, a_lost, b, b_lost):
    """Return two sums in fp64, each with what its additions lost."""
    total = a + b
    moved = total - a
    return total, a_lost + b_lost + ((a - (total - moved)) + (b - moved))


@triton.jit
def terms(v):
    """Return what a row's terms are added in: fp32 of half types, else fp64."""
    half: tl.constexpr = v.dtype.primitive_bitwidth == 16
    return v.to(tl.float32) if half else v.to(tl.float64)


@triton.jit
def row_sums(v):
    """Return the sums over dimension 1 in fp64 and, of fp64, what its additions lost."""
    if v.dtype.primitive_bitwidth == 64:
        total, lost = tl.reduce((v, tl.zeros_like(v)), 1, add_pairs)
    else:
        total = tl.sum(v, 1).to(tl.float64)
        lost = tl.zeros_like(total)
    return total, lost


@triton.jit
def whole(total, lost):
    """Return a sum with what its additions lost, which is NaN where the sum is not finite."""
    return tl.where(total - total == 0.0, total + lost, total)


@triton.jit
def block(start, n_cols, VEC: tl.constexpr, BLOCK: tl.constexpr):
    """Return the columns of a block, and whether they exist."""
    cols = start + tl.arange(0, BLOCK)
    return cols, cols < n_cols // VEC * VEC


@triton.jit
def tile(n_rows, n_cols, VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return rows and columns of a program that owns ROWS whole rows, and which of them exist."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = rows < n_rows
    cols, inside = block(0, n_cols, VEC, BLOCK)
    return rows, live, cols, live[:, None] & inside[None, :]


@triton.jit
def places(ptr, rows, stride, cols, VEC: tl.constexpr):
    """Return the pointers to the elements of a tile."""
    return ptr + rows[:, None] * (stride // VEC * VEC) + cols[None, :]
