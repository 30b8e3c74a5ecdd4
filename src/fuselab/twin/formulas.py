"""The formulas of the references in JAX; half types are computed in fp32 and rounded once.

Each takes what the operator's reference takes: arrays, and Python values, which are compiled in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fuselab.twin.norms import (
    add_rms_norm,
    add_rms_norm_fp8_dynamic,
    layer_norm,
    layer_norm_fp8,
    layer_norm_fp8_dynamic,
    rms_norm,
    rms_norm_fp8,
    rms_norm_fp8_dynamic,
)
from fuselab.twin.philox import dropout_factor, matrix_dropout_factor

# Which results of an operator are fp32 of half types.
WIDE = {
    "cross_entropy": 0,
    "linear_cross_entropy": 0,
    "rms_norm_fp8_dynamic": 1,
    "add_rms_norm_fp8_dynamic": 1,
    "layer_norm_fp8_dynamic": 1,
}


def softmax(x: Array) -> Array:
    e = jnp.exp(x - _largest(x))
    return e / _sum(e)


def double_softmax(x: Array) -> Array:
    return softmax(softmax(x))


def log_softmax(x: Array) -> Array:
    shifted = x - _largest(x)
    return shifted - jnp.log(_sum(jnp.exp(shifted)))


def cross_entropy(
    logits: Array, target: Array, weight: Array | None, ignore_index: int, reduction: str,
    label_smoothing: float, z_loss: float, softcap: float | None,
) -> Array:  # fmt: skip
    z = logits if softcap is None else softcap * jnp.tanh(logits / softcap)
    target = jnp.expand_dims(target, -1)
    kept = target != ignore_index
    at, costs = jnp.where(kept, target, 0), -log_softmax(z)
    loss, own = jnp.take_along_axis(costs, at, -1), jnp.ones_like(z[..., :1])
    if weight is not None:
        own, costs = weight[at].astype(z.dtype), costs * weight
    loss = (1 - label_smoothing) * own * loss
    if label_smoothing:
        loss = loss + label_smoothing / z.shape[-1] * _sum(costs)
    if z_loss:
        loss = loss + z_loss * jax.nn.logsumexp(z, -1, keepdims=True) ** 2
    loss = jnp.where(kept, loss, 0)
    if reduction == "none":
        return loss[..., 0]
    total = jnp.sum(loss)
    return total / jnp.sum(jnp.where(kept, own, 0)) if reduction == "mean" else total


def linear_cross_entropy(
    hidden: Array, weight: Array, target: Array, bias: Array | None = None, **how: Any
) -> Array:
    z = hidden @ weight.T
    return cross_entropy(z if bias is None else z + bias, target, None, **how)


def masked_softmax(
    x: Array,
    mask: Array | None = None,
    causal: bool = False,
    scale: float = 1.0,
    log: bool = False,
) -> Array:
    z = scale * x
    z = z if mask is None else z + mask
    if causal:
        queries, keys = x.shape[-2:]
        z = jnp.where(jnp.tril(jnp.ones((queries, keys), bool), keys - queries), z, -jnp.inf)
    return log_softmax(z) if log else softmax(z)


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Array:
    (batch, heads, queries, d), keys = q.shape, k.shape[2]
    k, v = (jnp.repeat(t, heads // t.shape[1], 1) for t in (k, v))
    z = q @ k.swapaxes(2, 3) * (d**-0.5 if scale is None else scale)
    i, j = jnp.arange(queries)[:, None], jnp.arange(keys)
    left, right = window or (-1, -1)
    seen = ((j <= i) | (not causal)) & ((j >= i - left) | (left < 0))
    seen &= (j <= i + right) | (right < 0)
    if mask is not None and mask.dtype == bool:
        seen &= mask
    elif mask is not None:
        z = z + mask
    p = _seen_softmax(z, seen)
    if dropout > 0 and seed is not None:
        kept = matrix_dropout_factor(batch * heads, queries, keys, dropout, seed)
        p = p * kept.reshape(p.shape).astype(p.dtype)
    return p @ v


def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Array:
    heads, batch = q.shape[1], cu_seqlens_q.shape[0] - 1
    k, v = (jnp.repeat(t, heads // t.shape[1], 1) for t in (k, v))
    z = jnp.einsum("ihd,jhd->hij", q, k) * (q.shape[2] ** -0.5 if scale is None else scale)
    (of_query, i), (of_key, j) = (
        _places(cu, rows.shape[0]) for cu, rows in ((cu_seqlens_q, q), (cu_seqlens_k, k))
    )
    of_query, i = of_query[:, None], i[:, None]
    left, right = window or (-1, -1)
    seen = (of_query == of_key) & ((j <= i) | (not causal))
    seen &= ((j >= i - left) | (left < 0)) & ((j <= i + right) | (right < 0))
    p = _seen_softmax(z, seen)
    if dropout > 0 and seed is not None:
        kept = matrix_dropout_factor(batch * heads, max_seqlen_q, max_seqlen_k, dropout, seed)
        kept = kept.reshape(batch, heads, max_seqlen_q, max_seqlen_k)
        p = p * jnp.moveaxis(kept[of_query, :, i, j], 2, 0).astype(p.dtype)
    return jnp.einsum("hij,jhd->ihd", p, v)


def _places(cu: Array, rows: int) -> tuple[Array, Array]:
    """Return whose each row of packed sequences is, and which of its."""
    row = jnp.arange(rows)
    sequence = jnp.searchsorted(cu[1:], row, side="right")
    return sequence, row - cu[sequence]


def _seen_softmax(z: Array, seen: Array) -> Array:
    """Return the softmax over what is seen, 0 where nothing is."""
    z = jnp.where(seen, z, -jnp.inf)
    most = _largest(z)
    e = jnp.exp(z - jnp.where(most > -jnp.inf, most, 0))
    total = _sum(e)
    return e / jnp.where(total > 0, total, 1)


def multihead_attention(
    x: Array,
    w_qkv: Array,
    b_qkv: Array,
    w_out: Array,
    b_out: Array,
    heads: int,
    kv_heads: int | None = None,
    mask: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Array:
    own = heads if kv_heads is None else kv_heads
    rows = matmul_add(x, w_qkv, b_qkv)
    rows = rows.reshape(*x.shape[:2], heads + 2 * own, -1).swapaxes(1, 2)
    q, k, v = jnp.split(rows, (heads, heads + own), 1)
    out = attention(q, k, v, mask, causal, scale, window, dropout, seed)
    return matmul_add(out.swapaxes(1, 2).reshape(*x.shape[:2], -1), w_out, b_out)


def softmax_backward(dy: Array, y: Array) -> Array:
    return y * (dy - _sum(dy * y))


def norm_chain(x: Array) -> Array:
    for _ in range(3):
        x = x * _sum(x)
    return x


def pointwise_chain(x: Array) -> Array:
    y = jnp.cos(x)
    return jnp.maximum(x * y, y) + x * y


def horizontal_reduction_pointwise(x: Array) -> tuple[Array, Array]:
    return jnp.sum(x, -1), jnp.cos(x)


def horizontal_reduction_reduction(x: Array) -> tuple[Array, Array]:
    return jnp.sum(x, -1), jnp.max(x, -1)


def bias_gelu(x: Array, bias: Array, approximate: str = "tanh") -> Array:
    return _gelu(x + bias, approximate)


def _gelu(h: Array, approximate: str) -> Array:
    if approximate == "tanh":
        return h * jax.nn.sigmoid(2 * (2 / jnp.pi) ** 0.5 * (h + 0.044715 * h**3))
    return h * jax.scipy.special.erfc(-h * 0.5**0.5) / 2


def bias_dropout_add(
    x: Array, bias: Array, residual: Array, p: float, training: bool, seed: int | None
) -> Array:
    h = x + bias
    if training and seed is not None:
        h = h * dropout_factor(h.shape, p, seed).astype(h.dtype)
    return residual + h


def rope(
    q: Array, k: Array, cos: Array, sin: Array, interleaved: bool = False
) -> tuple[Array, Array]:
    n = cos.shape[-1]
    (c, d), (s, t) = ((x, x) if x.ndim < 4 else jnp.moveaxis(x, -2, 0) for x in (cos, sin))
    c, d, s, t = (jnp.expand_dims(x, -3) for x in (c, d, s, t))

    def rotated(x: Array) -> Array:
        turned, rest = jnp.split(x, (2 * n,), -1)
        one, two = (
            (turned[..., ::2], turned[..., 1::2]) if interleaved else jnp.split(turned, 2, -1)
        )
        pairs = one * c - two * s, two * d + one * t
        joint = jnp.stack(pairs, -1) if interleaved else jnp.concatenate(pairs, -1)
        return jnp.concatenate((joint.reshape(turned.shape), rest), -1)

    return rotated(q), rotated(k)


def geglu(a: Array, b: Array | None = None, approximate: str = "tanh") -> Array:
    a, b = _sides(a, b)
    return _gelu(a, approximate) * b


def swiglu(a: Array, b: Array | None = None) -> Array:
    a, b = _sides(a, b)
    return a * jax.nn.sigmoid(a) * b


def _sides(a: Array, b: Array | None) -> tuple[Array, Array]:
    """Return a and b, which without b are the halves of a."""
    if b is not None:
        return a, b
    first, second = jnp.split(a, 2, -1)
    return first, second


def matmul_add(a: Array, b: Array, bias: Array) -> Array:
    return a @ b + bias


def matmul_relu(a: Array, b: Array) -> Array:
    return jax.nn.relu(a @ b)


def matmul_add_relu(a: Array, b: Array, bias: Array) -> Array:
    return jax.nn.relu(a @ b + bias)


def matmul_add_gelu(a: Array, b: Array, bias: Array, approximate: str = "tanh") -> Array:
    return bias_gelu(a @ b, bias, approximate)


def matmul_matmul(x: Array, w1: Array, w2: Array, activation: str | None) -> Array:
    h = x @ w1
    return (h if activation is None else jax.nn.relu(h)) @ w2


def mlp(x: Array, w1: Array, b1: Array, w2: Array, b2: Array, activation: str) -> Array:
    if activation == "relu":
        h = matmul_add_relu(x, w1, b1)
    else:
        h = matmul_add_gelu(x, w1, b1, "tanh" if activation == "gelu" else "none")
    return h @ w2 + b2


def conv_add(x: Array, weight: Array, bias: Array | None, **numbers: Any) -> Array:
    places = [(p, p) for p in numbers["padding"]]
    y = jax.lax.conv_general_dilated(
        x, weight, numbers["stride"], places, None, numbers["dilation"],
        feature_group_count=numbers["groups"],
    )  # fmt: skip
    return y if bias is None else y + bias.reshape(-1, *(1,) * len(places))


def conv_bn(
    x: Array, weight: Array, bias: Array | None, bn_weight: Array | None, bn_bias: Array | None,
    running_mean: Array | None, running_var: Array | None, training: bool, momentum: float,
    eps: float, relu: bool, **numbers: Any,
) -> Array:  # fmt: skip
    h = conv_add(x, weight, bias, **numbers)
    axes = (0, *range(2, h.ndim))
    mean, var = (jnp.mean(h, axes), jnp.var(h, axes)) if training else (running_mean, running_var)

    def along(t: Array) -> Array:
        return t.reshape(-1, *(1,) * (h.ndim - 2))

    y = (h - along(mean)) / jnp.sqrt(along(var) + eps)
    y = y if bn_weight is None else y * along(bn_weight)
    y = y if bn_bias is None else y + along(bn_bias)
    return jax.nn.relu(y) if relu else y


def conv_relu(x: Array, weight: Array, bias: Array | None, **numbers: Any) -> Array:
    return jax.nn.relu(conv_add(x, weight, bias, **numbers))


def conv_add_relu(x: Array, weight: Array, bias: Array | None, z: Array, **numbers: Any) -> Array:
    return jax.nn.relu(conv_add(x, weight, bias, **numbers) + z)


def _sum(x: Array) -> Array:
    return jnp.sum(x, -1, keepdims=True)


def _largest(x: Array) -> Array:
    return jax.lax.stop_gradient(jnp.max(x, -1, keepdims=True))


FORMULAS: dict[str, Callable[..., Any]] = {
    fn.__name__: fn
    for fn in (
        rms_norm, add_rms_norm, rms_norm_fp8, rms_norm_fp8_dynamic, add_rms_norm_fp8_dynamic,
        layer_norm, layer_norm_fp8, layer_norm_fp8_dynamic, softmax, double_softmax, log_softmax,
        masked_softmax, attention, attention_varlen, multihead_attention, softmax_backward,
        norm_chain, pointwise_chain,
        horizontal_reduction_pointwise, horizontal_reduction_reduction, bias_gelu, bias_dropout_add,
        conv_add, conv_relu, conv_add_relu, conv_bn, matmul_add, matmul_relu, matmul_add_relu,
        matmul_add_gelu, matmul_matmul, mlp, cross_entropy, linear_cross_entropy, geglu, rope,
        swiglu,
    )
}  # fmt: skip
