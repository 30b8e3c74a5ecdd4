"""The layer norm's arithmetic in Triton: sums, mean and rstd with their rests, and the result."""

from __future__ import annotations

import triton
import triton.language as tl

from fuseline.primitives.triton.rms import inverse_sqrt
from fuseline.primitives.triton.row_sums import add_pairs


@triton.jit
def centred(x, first, mask):
    """Return x - first of a row's elements, 0 for none, in fp64; of fp64 x with what that loses."""
    v = tl.where(mask, x, first).to(tl.float64)
    zero = tl.zeros_like(v)
    return add_pairs(v, zero, -first.to(tl.float64), zero)


@triton.jit
def add_sums(a, a_lost, b, b_lost, c, c_lost, d, d_lost):
    """Return two sums of one part of a row and those of
    another, each with what its additions lost.
    """
    first, first_lost = add_pairs(a, a_lost, c, c_lost)
    second, second_lost = add_pairs(b, b_lost, d, d_lost)
    return first, first_lost, second, second_lost


@triton.jit
def add_two(a, b, c, d):
    return a + c, b + d


@triton.jit
def squared(v, lost):
    square = tl.fma(v, v, tl.zeros_like(v))  # a product might become part of a sum's fma
    return square, tl.fma(v, v, -square) + 2 * v * lost


@triton.jit
def both_sums(v, lost, axis: tl.constexpr, EXACT: tl.constexpr):
    """Return the sums of v and of its squares and, if EXACT, what they lose."""
    if EXACT:
        square, square_lost = squared(v, lost)
        a, a_lost, b, b_lost = tl.reduce((v, lost, square, square_lost), axis, add_sums)
    else:
        a, b = tl.reduce((v, v * v), axis, add_two)
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
def moments(first, a, a_lost, b, b_lost, n_cols, eps, C: tl.constexpr):
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
        off, off_lost = squared(off, off_lost)
        b, b_lost = _over(b, b_lost, n)
        b, b_lost = _plus(b, b_lost, -off, -off_lost)
        b, b_lost = _plus(b, b_lost, eps + zero, zero)
        rstd = inverse_sqrt(b)
        square, square_lost = squared(rstd, zero)
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
def holds(variance, C: tl.constexpr):
    """Return whether C can represent rstd and the squares were in range; else use the fallback."""
    most: tl.constexpr = 1e280 if C == tl.float64 else 1e36  # noqa: SIM300
    return (variance * most >= 1.0) & (variance <= most)


@triton.jit
def apply(x, mean, mean_rest, rstd, rstd_rest, w, b, HALF: tl.constexpr):
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
