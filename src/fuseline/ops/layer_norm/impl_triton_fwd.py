"""The layer norm's forward kernels in Triton, and how they load a parameter."""

from __future__ import annotations

import triton
import triton.language as tl

from fuseline.primitives.triton.rms import DOWN, UP, float64_of, inverse_sqrt
from fuseline.primitives.triton.row_sums import add_pairs, block, places, tile

_COUNTS = ["n_rows", "n_cols", "x_stride", "eps_high", "eps_low"]


@triton.jit
def _centred(x, first, mask):
    """Return x - first of a row's elements, 0 for none, in fp64; of fp64 x with what that loses."""
    v = tl.where(mask, x, first).to(tl.float64)
    zero = tl.zeros_like(v)
    return add_pairs(v, zero, -first.to(tl.float64), zero)


@triton.jit
def _add_sums(a, a_lost, b, b_lost, c, c_lost, d, d_lost):
    """Return two sums of one part of a row and those of
    another, each with what its additions lost.
    """
    first, first_lost = add_pairs(a, a_lost, c, c_lost)
    second, second_lost = add_pairs(b, b_lost, d, d_lost)
    return first, first_lost, second, second_lost


@triton.jit
def _add_two(a, b, c, d):
    return a + c, b + d


@triton.jit
def _square(v, lost):
    square = tl.fma(v, v, tl.zeros_like(v))  # a product might become part of a sum's fma
    return square, tl.fma(v, v, -square) + 2 * v * lost


@triton.jit
def _sums(v, lost, axis: tl.constexpr, EXACT: tl.constexpr):
    """Return the sums of v and of its squares and, if EXACT, what they lose."""
    if EXACT:
        square, square_lost = _square(v, lost)
        a, a_lost, b, b_lost = tl.reduce((v, lost, square, square_lost), axis, _add_sums)
    else:
        a, b = tl.reduce((v, v * v), axis, _add_two)
        a_lost = tl.zeros_like(a)
        b_lost = tl.zeros_like(b)
    return a, a_lost, b, b_lost


@triton.jit
def _over(a, lost, n):
    """Return (a + lost) / n, and what of it the first does not hold."""
    quotient = a / n
    return quotient, (tl.fma(-quotient, n, a) + lost) / n


@triton.jit
def _plus(a, a_lost, b, b_lost):
    """Return the sum of two pairs, the second of which is what the first does not hold."""
    total, lost = add_pairs(a, a_lost, b, b_lost)
    high = total + lost
    return high, lost - (high - total)


@triton.jit
def _moments(first, a, a_lost, b, b_lost, n_cols, eps, C: tl.constexpr):
    """Return mean and rstd of rows, each with its rest, in C, from
    the sums of x - first and its squares.

    first is one of n elements, so at most sqrt(n - 1) standard deviations off their mean, and the
    difference of the squares loses at most a factor n of the bits of the sums: of fp64 or, for
    fp64 rows, of two of it. Also var + eps.
    """
    n = tl.full((), n_cols, tl.float64)
    origin = first.to(tl.float64)
    if C == tl.float64:  # noqa: SIM300
        zero = tl.zeros_like(origin)
        off, off_lost = _over(a, a_lost, n)
        mean, mean_rest = _plus(origin, zero, off, off_lost)
        off, off_lost = _square(off, off_lost)
        b, b_lost = _over(b, b_lost, n)
        b, b_lost = _plus(b, b_lost, -off, -off_lost)
        b, b_lost = _plus(b, b_lost, eps + zero, zero)
        rstd = inverse_sqrt(b)
        square, square_lost = _square(rstd, zero)
        rest = tl.fma(-b, square, 1.0 + zero) - b * square_lost - b_lost * square
        rstd, rstd_rest = _plus(rstd, zero, 0.5 * rstd * rest, zero)
        variance = b
    else:
        off = a / n
        variance = b / n - off * off + eps
        # One step of Newton's from fp32: 2^-43. A root and a division in fp64 would take longer
        # than the row.
        wide = tl.rsqrt(variance.to(tl.float32)).to(tl.float64)
        wide *= 1.5 - 0.5 * variance * wide * wide
        rstd = wide.to(tl.float32)
        rstd_rest = (wide - rstd.to(tl.float64)).to(tl.float32)
        mean = (origin + off).to(tl.float32)
        mean_rest = ((origin - mean.to(tl.float64)) + off).to(tl.float32)
    return mean, mean_rest, rstd, rstd_rest, variance


@triton.jit
def _in_range(variance, C: tl.constexpr):
    """Return whether C can represent rstd and the squares were in range; else use the fallback."""
    most: tl.constexpr = 1e280 if C == tl.float64 else 1e36  # noqa: SIM300
    return (variance * most >= 1.0) & (variance <= most)


@triton.jit
def _apply(x, mean, mean_rest, rstd, rstd_rest, w, b, HALF: tl.constexpr):
    """Return (x - mean) * rstd * w + b, of which the last addition may leave little of its terms.

    Up to there xhat has what its roundings lose.
    """
    v = x - mean
    if HALF:  # whose results hold no more: all that is lost where |x| >= |mean|
        lost = (x - v) - mean
    else:
        moved = v - x
        lost = (x - (v - moved)) - (mean + moved)
    xhat = v * rstd
    rest = tl.fma(lost - mean_rest, rstd, tl.fma(v, rstd_rest, tl.fma(v, rstd, -xhat)))
    # A rest of 0 under an infinite weight would be NaN. A comparison here spills; a clamp does not.
    most: tl.constexpr = 1.7976931348623157e308 if w.dtype == tl.float64 else 3.4028234663852886e38
    return tl.fma(xhat, w, b) + rest * tl.minimum(tl.maximum(w, -most), most)


@triton.jit
def parameter(ptr, cols, mask, otherwise, C: tl.constexpr):
    if ptr is None:
        values = tl.full(cols.shape, otherwise, C)
    else:
        values = tl.load(ptr + cols, mask, other=0.0, eviction_policy="evict_last").to(C)
    return values


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
    v, lost = _centred(x, first[:, None], mask)
    a, a_lost, b, b_lost = _sums(v, lost, 1, C == tl.float64)  # noqa: SIM300
    mean, mean_rest, rstd, rstd_rest, variance = _moments(
        first, a, a_lost, b, b_lost, n_cols, eps, C
    )
    inside = cols < n_cols // VEC * VEC
    w = parameter(w_ptr, cols, inside, 1.0, C)[None, :]
    bias = parameter(b_ptr, cols, inside, 0.0, C)[None, :]
    y = _apply(
        x, mean[:, None], mean_rest[:, None], rstd[:, None], rstd_rest[:, None], w, bias, HALF
    )
    good = live & _in_range(variance, C)
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
        v, lost = _centred(tl.load(x_row + cols, mask, other=0.0).to(C), first, mask)
        if C == tl.float64:  # noqa: SIM300
            square, square_lost = _square(v, lost)
            a, a_lost, b, b_lost = _add_sums(a, a_lost, b, b_lost, v, lost, square, square_lost)
        else:
            a += v
            b += v * v
    if C == tl.float64:  # noqa: SIM300
        a, a_lost, b, b_lost = tl.reduce((a, a_lost, b, b_lost), 0, _add_sums)
    else:
        a, b = tl.reduce((a, b), 0, _add_two)
        a_lost, b_lost = a, b
    mean, mean_rest, rstd, rstd_rest, variance = _moments(
        first, a, a_lost, b, b_lost, n_cols, eps, C
    )
    if _in_range(variance, C):
        if mean_ptr is not None:
            tl.store(mean_ptr + row, mean)
            tl.store(rstd_ptr + row, rstd)
        blocks = (n_cols + BLOCK - 1) // BLOCK
        for i in range(blocks):
            cols, mask = block((blocks - 1 - i) * BLOCK, n_cols, VEC, BLOCK)
            x = tl.load(x_row + cols, mask, other=0.0, eviction_policy="evict_first").to(C)
            w = parameter(w_ptr, cols, mask, 1.0, C)
            bias = parameter(b_ptr, cols, mask, 0.0, C)
            y = _apply(x, mean, mean_rest, rstd, rstd_rest, w, bias, HALF)
            tl.store(y_ptr + row * (n_cols // VEC * VEC) + cols, y.to(y_ptr.dtype.element_ty), mask)
    else:
        rows = row + tl.arange(0, 1)
        _fallback(
            x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, rows, rows >= 0,
            variance + tl.zeros((1,), tl.float64), n_cols, x_stride, eps, VEC, 1, BLOCK // 4,
        )  # fmt: skip
