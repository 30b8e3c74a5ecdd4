"""How a tile of fp32 becomes e4m3: by one scale in memory, or by scales made of it.

e4m3 is made by integer operations, so that any GPU and the interpreter round alike.
"""

from __future__ import annotations

import struct

import triton
import triton.language as tl

# In the place of a block's size: one scale a row, or one that is read.
ROW = tl.constexpr(0)
GIVEN = tl.constexpr(-1)
LEAST_SCALE = tl.constexpr(2.0**-126)


def group_of(block: int | None) -> int:
    """Return the constant that tells kernels the size of a block; None: a row."""
    return ROW.value if block is None else int(block)  # of a compiler a symbol


def bits_of(scale_ub: float | None) -> int:
    """Return the bits of the bound in fp32, Inf for none, as a launch takes them."""
    try:
        packed = struct.pack("<f", float("inf") if scale_ub is None else scale_ub)
    except OverflowError:  # beyond fp32
        packed = struct.pack("<f", float("inf"))
    bits: int = struct.unpack("<i", packed)[0]
    return bits


@triton.jit
def float32_of(bits):
    """Return an fp32 number from its bits."""
    return tl.cast(tl.cast(bits, tl.int32), tl.float32, bitcast=True)


@triton.jit
def e4m3(v):
    """Return the bits of the e4m3 value nearest to an fp32 one, 448 for what is larger."""
    bits = v.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    capped = tl.minimum(magnitude, 0x43E00000)
    normal = (capped - 0x3C000000 + 0x7FFFF + ((capped >> 20) & 1)) >> 20
    # Added to 2^14, whose last bit is the least subnormal, the sum is rounded by the processor.
    subnormal = (capped.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True)
    finite = tl.where(capped < 0x3C800000, subnormal - 0x46800000, normal)
    return (tl.where(magnitude > 0x7F800000, 0x7F, finite) | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def inverted(scale):
    """Return a power of two that brings a scale near 1, the scale there, and its inverse."""
    exponent = (scale.to(tl.int32, bitcast=True) >> 23) & 0xFF
    power = float32_of(tl.maximum(254 - exponent, 1) << 23)
    near = scale * power
    return power, near, tl.div_rn(1.0, near)


@triton.jit
def divided(v, power, near, inverse):
    """Return the bits of v / scale in e4m3, which are those of the division.

    The product with the inverse, corrected by its remainder: a quarter of a division's work. The
    power of two keeps the bits of both; what it takes from v is what e4m3 rounds to 0 or 448.
    """
    v *= power
    product = v * inverse
    better = tl.fma(tl.fma(-product, near, v), inverse, product)
    # The step makes NaN of what is not finite, and loses the sign of 0.
    return e4m3(tl.where(tl.abs(better) > 0.0, better, product))


@triton.jit
def magnitude(v):
    """Return the bits of |v|, which are ordered as the numbers are, with NaN above all."""
    return v.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scale_of(most, ub):
    """Return the scale of what has the largest `magnitude`; NaN stays NaN."""
    amax = float32_of(most)
    scale = tl.div_rn(tl.where(amax > ub, ub, amax), 448.0)
    return tl.where(scale < LEAST_SCALE, LEAST_SCALE, scale)


@triton.jit
def store_by(v, scale, y_ptrs, mask):
    """Write v / scale, the scale being one number or one of each row."""
    power, near, inverse = inverted(scale)
    tl.store(y_ptrs, divided(v, power, near, inverse), mask)


@triton.jit
def store_blocks(
    v, y_ptrs, scale_ptr, rows, live, mask, start, n_cols, ub,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write a tile of v from column `start` on in e4m3, and the scales of its blocks."""
    COUNT: tl.constexpr = BLOCK // GROUP
    parts = tl.reshape(v, (ROWS, COUNT, GROUP))
    scale = scale_of(tl.max(magnitude(parts), 2), ub)
    groups = start // GROUP + tl.arange(0, COUNT)
    count = (n_cols + GROUP - 1) // GROUP
    scale_ptrs = scale_ptr + rows[:, None] * count + groups[None, :]
    tl.store(scale_ptrs, scale, live[:, None] & (groups < count)[None, :])
    power, near, inverse = inverted(scale)
    bits = divided(parts, power[:, :, None], near[:, :, None], inverse[:, :, None])
    tl.store(y_ptrs, tl.reshape(bits, (ROWS, BLOCK)), mask)


@triton.jit
def store(
    v, y_ptrs, scale_ptr, rows, live, mask, n_cols, ub,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write whole rows v in e4m3, and their scales unless GIVEN."""
    if GROUP != GIVEN:
        v = tl.where(mask, v, 0.0)  # where there is nothing, it might be anything
    if GROUP == GIVEN:
        store_by(v, tl.load(scale_ptr), y_ptrs, mask)
    elif GROUP == ROW:
        scale = scale_of(tl.max(magnitude(v), 1), ub)
        tl.store(scale_ptr + rows, scale, live)
        store_by(v, scale[:, None], y_ptrs, mask)
    else:
        store_blocks(
            v, y_ptrs, scale_ptr, rows, live, mask, 0, n_cols, ub, ROWS, BLOCK, GROUP
        )  # fmt: skip
