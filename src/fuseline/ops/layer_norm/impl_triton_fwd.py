"""The layer norm's forward kernels in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from fuseline.primitives.triton.norms.layer import (
    add_sums,
    add_two,
    apply,
    both_sums,
    centred,
    holds,
    moments,
    parameter,
    squared,
)
from fuseline.primitives.triton.rms import DOWN, UP, float64_of, inverse_sqrt
from fuseline.primitives.triton.row_sums import block, places, tile

_COUNTS = ["n_rows", "n_cols", "x_stride", "eps_high", "eps_low"]


@triton.jit
def _fallback(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, rows, again, variance, n_cols, x_stride, eps,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process the rows marked `again`: read x three times, write y, mean and rstd, all in fp64.

    That holds the square of every fp32; fp64 rows are first scaled by a power of two.
    """
    C: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    x_rows = x_ptr + rows[:, None] * (x_stride // VEC * VEC)
    scale = tl.full((ROWS,), 1.0, tl.float64)
    if C == tl.float64:  # noqa: SIM300
        scale = tl.where(variance < 1.0, UP, DOWN)
    n = tl.full((), n_cols, tl.float64)
    mean = tl.zeros((ROWS,), tl.float64)
    r = tl.zeros((ROWS,), tl.float64)
    for step in tl.static_range(3):
        sums = tl.zeros((ROWS, BLOCK), tl.float64)
        for start in range(0, n_cols, BLOCK):
            cols, inside = block(start, n_cols, VEC, BLOCK)
            mask = again[:, None] & inside[None, :]
            v = tl.load(x_rows + cols[None, :], mask, other=0.0).to(tl.float64) * scale[:, None]
            v = tl.where(mask, v - mean[:, None], 0.0)
            if step == 0:
                sums += v
            elif step == 1:
                sums += v * v
            else:
                w = parameter(w_ptr, cols, inside, 1.0, tl.float64)
                b = parameter(b_ptr, cols, inside, 0.0, tl.float64)
                y = v * r[:, None] * w[None, :] + b[None, :]
                y_ptrs = places(y_ptr, rows, n_cols, cols, VEC)
                tl.store(y_ptrs, y.to(C).to(y_ptr.dtype.element_ty), mask)
        if step == 0:
            mean = tl.sum(sums, 1) / n
        elif step == 1:
            r = inverse_sqrt(tl.sum(sums, 1) / n + eps * scale * scale)
    if mean_ptr is not None:
        tl.store(mean_ptr + rows, (mean / scale).to(C), again)
        tl.store(rstd_ptr + rows, (r * scale).to(C), again)


@triton.jit(do_not_specialize=_COUNTS)
def fwd_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, n_rows, n_cols, x_stride, eps_high, eps_low,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process ROWS whole rows: read x, weight and bias once, write y, mean and rstd."""
    C: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    HALF: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth == 16
    eps = float64_of(eps_high, eps_low)
    rows, live, cols, mask = tile(n_rows, n_cols, VEC, ROWS, BLOCK)
    x = tl.load(places(x_ptr, rows, x_stride, cols, VEC), mask, other=0.0).to(C)
    first = tl.load(x_ptr + rows * (x_stride // VEC * VEC), live & (n_cols > 0), other=0.0).to(C)
    v, lost = centred(x, first[:, None], mask)
    a, a_lost, b, b_lost = both_sums(v, lost, 1, C == tl.float64)  # noqa: SIM300
    mean, mean_rest, rstd, rstd_rest, variance = moments(
        first, a, a_lost, b, b_lost, n_cols, eps, C
    )
    inside = cols < n_cols // VEC * VEC
    w = parameter(w_ptr, cols, inside, 1.0, C)[None, :]
    bias = parameter(b_ptr, cols, inside, 0.0, C)[None, :]
    y = apply(
        x, mean[:, None], mean_rest[:, None], rstd[:, None], rstd_rest[:, None], w, bias, HALF
    )
    good = live & holds(variance, C)
    y_ptrs = places(y_ptr, rows, n_cols, cols, VEC)
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), mask & good[:, None])
    if mean_ptr is not None:
        tl.store(mean_ptr + rows, mean, good)
        tl.store(rstd_ptr + rows, rstd, good)
    again = live & ~good
    if tl.sum(again.to(tl.int32), 0) > 0:
        LOOK: tl.constexpr = 1024 if BLOCK > 8192 else max(BLOCK // 2, 1)  # so that nothing spills
        _fallback(
            x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, rows, again, variance, n_cols, x_stride,
            eps, VEC, ROWS, LOOK,
        )  # fmt: skip


@triton.jit(do_not_specialize=_COUNTS[1:])
def fwd_long_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, n_cols, x_stride, eps_high, eps_low,
    VEC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process one row: read x twice, the second time backwards from what the caches still hold."""
    C: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    HALF: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth == 16
    eps = float64_of(eps_high, eps_low)
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * (x_stride // VEC * VEC)
    first = tl.load(x_row).to(C)
    a = tl.zeros((BLOCK,), tl.float64)
    b = tl.zeros((BLOCK,), tl.float64)
    a_lost = tl.zeros((BLOCK,), tl.float64)
    b_lost = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_cols, BLOCK):
        cols, mask = block(start, n_cols, VEC, BLOCK)
        v, lost = centred(tl.load(x_row + cols, mask, other=0.0).to(C), first, mask)
        if C == tl.float64:  # noqa: SIM300
            square, square_lost = squared(v, lost)
            a, a_lost, b, b_lost = add_sums(a, a_lost, b, b_lost, v, lost, square, square_lost)
        else:
            a += v
            b += v * v
    if C == tl.float64:  # noqa: SIM300
        a, a_lost, b, b_lost = tl.reduce((a, a_lost, b, b_lost), 0, add_sums)
    else:
        a, b = tl.reduce((a, b), 0, add_two)
        a_lost, b_lost = a, b
    mean, mean_rest, rstd, rstd_rest, variance = moments(
        first, a, a_lost, b, b_lost, n_cols, eps, C
    )
    if holds(variance, C):
        if mean_ptr is not None:
            tl.store(mean_ptr + row, mean)
            tl.store(rstd_ptr + row, rstd)
        blocks = (n_cols + BLOCK - 1) // BLOCK
        for i in range(blocks):
            cols, mask = block((blocks - 1 - i) * BLOCK, n_cols, VEC, BLOCK)
            x = tl.load(x_row + cols, mask, other=0.0, eviction_policy="evict_first").to(C)
            w = parameter(w_ptr, cols, mask, 1.0, C)
            bias = parameter(b_ptr, cols, mask, 0.0, C)
            y = apply(x, mean, mean_rest, rstd, rstd_rest, w, bias, HALF)
            tl.store(y_ptr + row * (n_cols // VEC * VEC) + cols, y.to(y_ptr.dtype.element_ty), mask)
    else:
        rows = row + tl.arange(0, 1)
        _fallback(
            x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, rows, rows >= 0,
            variance + tl.zeros((1,), tl.float64), n_cols, x_stride, eps, VEC, 1, BLOCK // 4,
        )  # fmt: skip
