"""GELU in Triton, both formulas: what share of a number passes, and the share's slope.

y = h * share(h) with h = x + bias. A small share is an exponential, whose argument shows what its
roundings lose, so for fp32 and fp64 it is taken in two parts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fuseline.primitives.triton.approximate import exp2, inverse

# From here on the share is 0 or 1, and its slope 0, in any type.
FAR = tl.constexpr(64.0)
# The normal distribution at -a is e^(-a^2 / 2) / (a + 4) times this polynomial of
# (a - 4) / (a + 4), to 3e-8 and 1e-16; see cpu/vectors/gelu.h.
SHORT = tl.constexpr((
    -0.000122983154, 0.000194801847, 0.0015693137, -0.00352357398, -0.00752721308, 0.0604064688,
    -0.186523005, 0.387136668, -0.607896626, 0.755285144,
))  # fmt: skip
LONG = tl.constexpr((
    -9.653425420228504e-10, 7.26954547902669e-11, 1.392402399350171e-08, 1.457859334703646e-08,
    -7.63808205349045e-08, -1.5426320536771075e-07, 2.6368248576407624e-07, 1.0198048518135172e-06,
    -6.25132104047868e-07, -5.918892731763236e-06, 7.150055959216099e-07, 3.5144181157760973e-05,
    -1.9078665316613576e-06, -0.0002310948183193762, 0.00013334425401904912, 0.0016308184418903596,
    -0.0034796923622425332, -0.007540188965593059, 0.06039657489069947, -0.18652185795969417,
    0.38713740074221886, -0.6078966419718917, 0.7552851304157515,
))  # fmt: skip

# In base 2: 2 * sqrt(2 / pi) and 0.044715 of it, and 1 / 2.
FIRST = tl.constexpr(2.3022081981443248)
THIRD = tl.constexpr(0.1029432395800235)
HALF = tl.constexpr(0.7213475204444817)
CUBIC = tl.constexpr(0.044715)
# What fp32 has not of them.
FIRST_REST = tl.constexpr(1.2948402350332344e-08)
CUBIC_REST = tl.constexpr(1.5461444832776117e-09)
HALF_REST = tl.constexpr(9.62981494545545e-09)


@triton.jit
def _constant(v: tl.constexpr, acc: tl.constexpr):
    """Return a number in acc: Triton would round a Python float to fp32."""
    return tl.full((), v, acc)


@triton.jit
def _sum(a, b):
    """Return a + b and what its rounding loses."""
    total = a + b
    moved = total - a
    return total, (a - (total - moved)) + (b - moved)


@triton.jit
def _product(a, b):
    """Return a * b and what its rounding loses; a plain product
    might be contracted with what adds it.
    """
    product = tl.fma(a, b, tl.zeros_like(a))
    return product, tl.fma(a, b, -product)


@triton.jit
def _exp2_of_minus(t, low):
    """Return 2^-(t + low), in base 2 because the hardware's exponential is."""
    e = exp2(-t)
    return tl.fma(e, low * _constant(-0.6931471805599453, e.dtype), e)


@triton.jit
def _tanh_share(h, e):
    """Return 1 / (1 + e^-u) of e = e^-|u|."""
    positive = inverse(1.0 + e)
    negative = e * positive
    return tl.where(h < 0, negative, positive), negative * positive


@triton.jit
def _tanh_gate(h, a, a_low, acc: tl.constexpr, EXACT: tl.constexpr):
    """Return 1 / (1 + e^-u), u = 2 * sqrt(2 / pi) * (h + 0.044715
    * h^3), and its slope; u in base 2.
    """
    first = _constant(FIRST, acc) + tl.zeros_like(a)
    third = _constant(THIRD, acc) + tl.zeros_like(a)
    if EXACT:
        square, square_low = _product(a, a)
        cubic, cubic_low = _product(third, square)
        factor, low = _sum(first, cubic)
        low += tl.fma(third, square_low, cubic_low)
        low += tl.fma(  # what fp64 has not of the two constants
            _constant(-5.978177400718744e-18, acc) + tl.zeros_like(a),
            square,
            _constant(1.3132826040769712e-16, acc) + tl.zeros_like(a),
        )
        t, t_low = _product(a, factor)
        derivative = tl.fma(third, 2 * square, factor)
        e = _exp2_of_minus(t, tl.fma(a_low, derivative, tl.fma(a, low, t_low)))
    else:
        cubic = third * (a * a)
        derivative = first + 3 * cubic
        e = exp2(-a * (first + cubic))
    share, slope = _tanh_share(h, e)
    return share, slope * derivative * _constant(0.6931471805599453, acc)


@triton.jit
def _polynomial(t, coefficients: tl.constexpr, COUNT: tl.constexpr):
    p = tl.zeros_like(t)
    for i in tl.static_range(COUNT):
        p = tl.fma(p, t, _constant(coefficients[i], t.dtype) + tl.zeros_like(t))
    return p


@triton.jit
def _normal_share(h, a, e, acc: tl.constexpr):
    """Return erfc(-h / sqrt(2)) / 2 of e = e^(-a^2 / 2), a = |h|."""
    scale = inverse(a + 4.0)
    t = 1.0 - 8.0 * scale
    p = _polynomial(t, LONG, 23) if acc == tl.float64 else _polynomial(t, SHORT, 10)
    tail = e * (scale * p)
    return tl.where(h < 0, tail, 1.0 - tail)


@triton.jit
def _normal_gate(h, a, a_low, acc: tl.constexpr, EXACT: tl.constexpr):
    """Return the share erfc(-h / sqrt(2)) / 2 and its slope."""
    half = _constant(HALF, acc) + tl.zeros_like(a)
    if EXACT:
        square, low = _product(a, a)
        low = tl.fma(2 * a, a_low, low)
        t, t_low = _product(square, half)
        rest = _constant(1.0177636870465517e-17, acc) + tl.zeros_like(a)  # what fp64 has not of it
        e = _exp2_of_minus(t, tl.fma(low, half, tl.fma(square, rest, t_low)))
    else:
        e = exp2(-half * (a * a))
    return _normal_share(h, a, e, acc), e * _constant(0.3989422804014327, acc)


@triton.jit
def gate(x, bias, TANH: tl.constexpr, EXACT: tl.constexpr):
    """Return x + bias, the share of it that passes, and the share's slope."""
    if EXACT:
        h, low = _sum(x, bias)
        low = tl.where(tl.abs(h) < FAR, tl.where(h < 0, -low, low), 0.0)  # Inf loses NaN
    else:
        h = x + bias
        low = tl.zeros_like(h)
    a = tl.minimum(tl.abs(h), FAR, propagate_nan=tl.PropagateNan.ALL)
    if TANH:
        share, slope = _tanh_gate(h, a, low, x.dtype, EXACT)
    else:
        share, slope = _normal_gate(h, a, low, x.dtype, EXACT)
    return h, share, slope


@triton.jit
def single_share(x, bias, TANH: tl.constexpr):
    """Return x + bias and the share of it that passes, of fp32, with an exponent in two parts.

    In fewer instructions than `gate` takes for fp64: memory leaves time for some 45 an element.
    Ends are cut off so that they give 0 or 1, whatever the small parts are there.
    """
    h, low = _sum(x, bias)
    low = tl.minimum(low, 1.0)  # Inf loses NaN, which is not taken over
    a = tl.clamp(h, -FAR, FAR)
    minus = a * -1.0  # free, while -a is an addition to Triton
    square = a * a
    square_lost = tl.fma(minus, a, square)
    if TANH:  # t = -FIRST * a * (1 + CUBIC * a^2): what 1 is added to leaves all of its rounding
        factor = tl.fma(square, CUBIC, 1.0)
        factor_low = tl.fma(square, CUBIC, 1.0 - factor)
        factor_low = tl.fma(square_lost, -CUBIC, tl.fma(square, CUBIC_REST, factor_low))
        product = a * factor
        lost = tl.fma(minus, factor_low, tl.fma(minus, factor, product))
        lost = tl.fma(low, tl.fma(square, -3 * CUBIC, -1.0), lost)
        t = product * -FIRST
        t_lost = tl.fma(product, FIRST_REST, tl.fma(product, FIRST, t))
        t_lost = tl.fma(lost, -FIRST, t_lost)
    else:
        square_lost = tl.fma(minus + minus, low, square_lost)
        t = square * -HALF
        t_lost = tl.fma(square, HALF_REST, tl.fma(square, HALF, t))
        t_lost = tl.fma(square_lost, -HALF, t_lost)
    e = exp2(t) * tl.fma(t_lost, -0.6931471805599453, 1.0)
    share = inverse(1.0 + e) if TANH else _normal_share(h, tl.abs(a), e, tl.float32)
    return h, share
