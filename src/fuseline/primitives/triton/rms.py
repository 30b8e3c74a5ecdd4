"""The root-mean-square norm's device functions."""

from __future__ import annotations

import triton
import triton.language as tl

# Below TINY32 the squares of fp32 lose bits to underflow, below TINY64 those of fp64.
TINY32 = tl.constexpr(1e-30)
TINY64 = tl.constexpr(1e-280)
UP = tl.constexpr(2.0**600)
DOWN = tl.constexpr(2.0**-600)
# A long row is summed in fp32 over so many blocks, then in fp64: long sums of like terms err in
# one direction.
BLOCKS = tl.constexpr(8)


@triton.jit
def float64_of(high, low):
    """Return a double from the halves of its bits: Triton would round a Python float to fp32."""
    bits = (tl.cast(high, tl.int64) << 32) | (tl.cast(low, tl.int64) & 0xFFFFFFFF)
    return tl.cast(bits, tl.float64, bitcast=True)


@triton.jit
def divide(a, b):
    """Return a / b correctly rounded, as fp64 always is; the plain fp32 division is 2 ULP off."""
    return a / b if a.dtype == tl.float64 else tl.div_rn(a, b)


@triton.jit
def inverse_sqrt(a):
    """Return 1 / sqrt(a), both steps correctly rounded; the hardware's rsqrt is 2 ULP off."""
    return 1.0 / tl.sqrt(a) if a.dtype == tl.float64 else tl.div_rn(1.0, tl.sqrt_rn(a))


@triton.jit
def in_range(a):
    """Return whether a mean square is finite, not NaN, and large enough to be exact."""
    tiny: tl.constexpr = TINY64 if a.dtype == tl.float64 else TINY32
    return (a >= tiny) & (a < float("inf"))


@triton.jit
def plus(w, OFFSET: tl.constexpr):
    """Return OFFSET + w in w's own type; w itself for 0."""
    return w if OFFSET == 0.0 else w + tl.full((), OFFSET, w.dtype)


@triton.jit
def fallback(
    x_ptr, w_ptr, y_ptr, rstd_ptr, rows, again, mean, n_cols, x_stride, eps,
    VEC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, OFFSET: tl.constexpr = 0.0,
):  # fmt: skip
    """Process the rows marked `again`: read x twice, write y and rstd.

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
