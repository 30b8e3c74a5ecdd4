"""1 / v and 2^v of fp32 by one instruction each, without what some numbers would need."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def inverse(v):
    """Return 1 / v, of fp32 to 1 ULP and 0 where that is below 2^-126."""
    if v.dtype == tl.float32:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [v], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / v


@triton.jit
def exp2(v):
    """Return 2^v, of fp32 to 2 ULP and 0 where that is below 2^-126."""
    if v.dtype == tl.float32:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [v], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.exp2(v)
