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


def matrix_dropout_factor(matrices: int, rows: int, columns: int, p: float, seed: int) -> Array:
    """Return the same for matrices, (matrices, rows, columns), each element by its own place."""
    shape = (matrices, rows, (columns + 3) // 4)
    matrix, row, four = jnp.meshgrid(
        *(jnp.arange(n, dtype=jnp.uint64) for n in shape), indexing="ij"
    )
    numbers = _rounds(seed, four, row, matrix, jnp.zeros_like(four))
    keep = numbers.reshape(matrices, rows, -1)[..., :columns] >= philox.threshold(p)
    return keep * philox.scale(p)


def _numbers(seed: int, n: int) -> Array:
    counter = jnp.arange((n + 3) // 4, dtype=jnp.uint64)
    zero = jnp.zeros_like(counter)
    low, high = counter & jnp.uint64(0xFFFFFFFF), counter >> 32
    return _rounds(seed, low, high, zero, zero).reshape(-1)[:n]


def _rounds(seed: int, a: Array, b: Array, c: Array, d: Array) -> Array:
    """Return the four numbers of each counter, in a last dimension."""
    low = jnp.uint64(0xFFFFFFFF)
    key0, key1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        of_a, of_c = a * jnp.uint64(0xD2511F53), c * jnp.uint64(0xCD9E8D57)
        a, c = (of_c >> 32) ^ b ^ jnp.uint64(key0), (of_a >> 32) ^ d ^ jnp.uint64(key1)
        b, d = of_c & low, of_a & low
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return jnp.stack([a, b, c, d], -1)
