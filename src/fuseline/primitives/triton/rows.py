"""What the Triton implementations of norms over rows are launched with.

Counts and strides reach the kernels unspecialised: a new batch size compiles nothing. What a wide
memory access needs to know of them is VEC, which divides the row length and row strides.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache

import torch
import triton


def whole_meta(n_cols: int, size: int, warps: int) -> dict[str, int]:
    """Return the constants of a kernel whose programs hold whole rows, `size` elements in all."""
    block = power_of_2(max(n_cols, 1))
    return {"ROWS": size // block, "BLOCK": block, "num_warps": warps}


def power_of_2(n: int) -> int:
    """Return the least from n on."""
    # Triton's own takes ten times as long, but also the symbols of a compiler.
    power: int = 1 << (n - 1).bit_length() if type(n) is int else triton.next_power_of_2(n)
    return power


def divide_up(a: int, b: int) -> int:
    return -(-a // b)


@lru_cache(maxsize=1024)
def halves(eps: float) -> tuple[int, int]:
    """Return the bits of a double as two signed 32-bit numbers, Inductor's largest constants."""
    low, high = struct.unpack("<ii", struct.pack("<d", eps))
    return high, low


@lru_cache(maxsize=64)
def processors(device: torch.device) -> int:
    """Return the sM count; 2 for the interpreter, which has none."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def vec(x: torch.Tensor, *steps: int) -> int:
    """Return the elements of one memory access: at most 16 bytes, dividing every step of rows."""
    return vec_of(x.dtype, *steps)


def vec_of(dtype: torch.dtype, *steps: int) -> int:
    """Return the same of elements of a dtype."""
    widest = 16 // dtype.itemsize
    if torch.SymInt not in map(type, steps):
        return math.gcd(widest, *steps)
    # gcd would fix a symbol's value, and every size would compile anew: only what it is divisible
    # by is asked for.
    while widest > 1 and any(step % widest != 0 for step in steps):
        widest //= 2
    return widest
