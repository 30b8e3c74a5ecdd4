"""Cosine and sine in Triton, for half types with no more digits than these keep."""

from __future__ import annotations

import triton
import triton.language as tl

# Added to a number of less than 2^22, it leaves the nearest integer in the last bits.
TO_INTEGER = tl.constexpr(1.5 * 2.0**23)
# From here on, 2^16, bfloat16 goes to the library; float16 ends before.
LARGE_BITS = tl.constexpr(0x47800000)


@triton.jit
def cos_sin(x, element: tl.constexpr):
    """Return (cos(x), sin(x)) of an x that came from memory as `element`.

    The library's, but for half types: it takes more instructions than memory gives time for at 2
    bytes an element.
    """
    if element.primitive_bitwidth > 16:
        cos = tl.cos(x)
        sin = tl.sin(x)
    else:
        cos, sin = _cos_sin_short(x)
        if element == tl.bfloat16:
            bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
            if tl.max(bits) >= LARGE_BITS:
                cos = tl.where(bits >= LARGE_BITS, tl.cos(x), cos)
                sin = tl.where(bits >= LARGE_BITS, tl.sin(x), sin)
    return cos, sin


@triton.jit
def _cos_sin_short(x):
    """Return the relative error of cos 2e-6, absolute of sin 1e-5, for fp32 |x| < 2^16.

    x = (n + 1/2) * pi - r with |r| <= pi / 2; minimax polynomials of our own.
    """
    shifted = tl.fma(x, 0.3183098861837907, -0.5) + TO_INTEGER
    turns = shifted - TO_INTEGER + 0.5
    r = tl.fma(turns, 3.1415927410125732, -x)
    r = tl.fma(turns, -8.742278000372485e-08, r)
    z = r * r
    sin_r = tl.fma(r * z, _cubic(z, -0.16665843, 0.00831412, -0.00018537046), r)
    cos_r = tl.fma(z, _cubic(z, -0.49993488, 0.04150582, -0.0012753167), 1.0)
    sign = shifted.to(tl.int32, bitcast=True) << 31
    return _flip(sin_r, sign), _flip(cos_r, sign)


@triton.jit
def _cubic(z, a, b, c):
    return tl.fma(z, tl.fma(z, c, b), a)


@triton.jit
def _flip(v, sign):
    return (v.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)
