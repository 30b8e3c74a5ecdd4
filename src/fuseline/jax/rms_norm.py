"""RMSNorm in JAX: fuseline's C++ and CUDA kernels, forward and backward."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fuseline.jax import library

Saved = tuple[Array, Array, Array]
DTYPES = ("float64", "float32", "float16", "bfloat16")


def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-6) -> Array:
    """Return y = x * rsqrt(mean(x^2) + eps) * weight over the last dimension, by fuseline's kernel.

    x [..., n] fp64, fp32, fp16 or bf16 on the CPU or an NVIDIA GPU; weight [n] in x's dtype or
    fp32, or None for 1. Returns y like x. Under jit, grad (reverse mode, once) and vmap (one call
    after the other). A sharded x is gathered first, unless the call is within shard_map.
    ValueError for shapes, TypeError for dtypes, RuntimeError without a C++ compiler.
    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    for name, given in (("x", x), ("weight", weight)):
        if given is not None and not isinstance(given, (Array, np.ndarray)):
            raise TypeError(f"rms_norm: {name} is {type(given).__name__}, expected an array")
    if x.dtype.name not in DTYPES:
        raise TypeError(f"rms_norm: x is {x.dtype}, expected one of {', '.join(DTYPES)}")
    if x.ndim < 1 or x.shape[-1] < 1:
        raise ValueError(f"rms_norm: x has shape {x.shape}, expected a last dimension of 1 or more")
    if weight is None:
        weight = jnp.ones(x.shape[-1], x.dtype)
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"rms_norm: weight has shape {weight.shape}, expected {x.shape[-1:]}")
    if weight.dtype not in (x.dtype, jnp.float32):
        expected = " or ".join(dict.fromkeys((x.dtype.name, "float32")))
        raise TypeError(f"rms_norm: weight is {weight.dtype}, expected {expected}")
    if x.dtype == jnp.float64:  # there are no kernels for a weight of fp32
        weight = weight.astype(x.dtype)
    library.register()
    return _rms_norm(x, weight, float(eps))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return _forward(x, weight, eps)[0]


def _forward(x: Array, weight: Array, eps: float) -> tuple[Array, Saved]:
    statistic = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    like = (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(x.shape[:-1], statistic))
    call = jax.ffi.ffi_call(library.TARGETS[0], like, vmap_method="sequential")
    y, rstd = call(x, weight, eps=eps)
    return y, (x, weight, rstd)


def _backward(eps: float, saved: Saved, dy: Array) -> tuple[Array, Array]:
    x, weight, rstd = saved
    like = tuple(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in (x, weight))
    call = jax.ffi.ffi_call(library.TARGETS[1], like, vmap_method="sequential")
    dx, dweight = call(dy, x, weight, rstd)
    return dx, dweight


_rms_norm.defvjp(_forward, _backward)
