"""Philox 4x32-10 in JAX, number by number that of fuseline.primitives.philox."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fuseline.primitives import philox


def dropout_factor(shape: tuple[int, ...], p: float, seed: int) -> Array:
    """Return dropout's factor for each element, in fp64: 0 or 1 / (1 - p); needs 64-bit types."""
    n = 1
    for size in shape:
        n *= size
    keep = _numbers(seed, n) >= philox.threshold(p)
    return keep.reshape(shape) * philox.scale(p)


def _numbers(seed: int, n: int) -> Array:
    low = jnp.uint64(0xFFFFFFFF)
    counter = jnp.arange((n + 3) // 4, dtype=jnp.uint64)
    a, b = counter & low, counter >> 32
    c = d = jnp.zeros_like(a)
    key0, key1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        of_a, of_c = a * jnp.uint64(0xD2511F53), c * jnp.uint64(0xCD9E8D57)
        a, c = (of_c >> 32) ^ b ^ jnp.uint64(key0), (of_a >> 32) ^ d ^ jnp.uint64(key1)
        b, d = of_c & low, of_a & low
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return jnp.stack([a, b, c, d], -1).reshape(-1)[:n]
