"""The norms' formulas in JAX, and their quantisation to float8_e4m3fn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

E4M3_MOST = 448.0


def rms_norm(x: Array, weight: Array | None, eps: float, weight_offset: float = 0.0) -> Array:
    y = x * jax.lax.rsqrt(mean(x * x) + eps)
    return y if weight is None else y * (weight_offset + weight)


def add_rms_norm(
    x: Array, residual: Array, weight: Array | None, eps: float
) -> tuple[Array, Array]:
    h = x + residual
    return rms_norm(h, weight, eps), h


def rms_norm_fp8(x: Array, weight: Array | None, scale: Array, eps: float) -> Array:
    return _e4m3(rms_norm(x, weight, eps) / scale.reshape(()))


def rms_norm_fp8_dynamic(
    x: Array, weight: Array | None, eps: float, block: int | None, scale_ub: float | None
) -> tuple[Array, Array]:
    return _by_blocks(rms_norm(x, weight, eps), block, scale_ub)


def add_rms_norm_fp8_dynamic(
    x: Array,
    residual: Array,
    weight: Array | None,
    eps: float,
    block: int | None,
    scale_ub: float | None,
) -> tuple[Array, Array, Array]:
    v, h = add_rms_norm(x, residual, weight, eps)
    return *_by_blocks(v, block, scale_ub), h


def layer_norm_fp8(
    x: Array, weight: Array | None, bias: Array | None, scale: Array, eps: float
) -> Array:
    return _e4m3(layer_norm(x, weight, bias, eps) / scale.reshape(()))


def layer_norm_fp8_dynamic(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    block: int | None,
    scale_ub: float | None,
) -> tuple[Array, Array]:
    return _by_blocks(layer_norm(x, weight, bias, eps), block, scale_ub)


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    h = x - mean(x)
    y = h * jax.lax.rsqrt(mean(h * h) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def mean(x: Array) -> Array:
    return jnp.mean(x, -1, keepdims=True)


def _e4m3(v: Array) -> Array:
    return v.clip(-E4M3_MOST, E4M3_MOST).astype(jnp.float8_e4m3fn)


def _by_blocks(v: Array, block: int | None, scale_ub: float | None) -> tuple[Array, Array]:
    n = v.shape[-1]
    size = n if block is None else block
    count = -(-n // size)
    padded = jnp.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, count * size - n)])
    blocks = padded.reshape(*v.shape[:-1], count, size)
    amax = jnp.abs(blocks).max(-1, keepdims=True)
    amax = amax if scale_ub is None else jnp.minimum(amax, scale_ub)
    scale = jnp.maximum(amax / E4M3_MOST, 2.0**-126)
    return _e4m3(blocks / scale).reshape(padded.shape)[..., :n], scale[..., 0]
