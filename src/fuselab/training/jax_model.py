"""The same model and AdamW in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fuselab.training.setting import ADAM_EPS, BETAS, DECAY, LR, NORM_EPS, Setting, Weights, rope

Params = dict[str, jax.Array]


def parameters(setting: Setting, weights: Weights) -> Params:
    return {name: jnp.asarray(w, dtype=setting.dtype) for name, w in weights.items()}


def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    h = x.astype(jnp.float32)
    h = h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + NORM_EPS)
    return weight * h.astype(x.dtype)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def loss_of(params: Params, tokens: jax.Array, setting: Setting) -> jax.Array:
    """Return the mean cross entropy of each next token, in fp32."""
    cos, sin = (jnp.asarray(table, dtype=setting.dtype) for table in rope(setting))
    x = params["embedding"][tokens[:, :-1]]
    for i in range(setting.layers):
        p = {name: params[f"{i}.{name}"] for name in ("q", "k", "v", "o", "gate", "up", "down")}
        h = norm(x, params[f"{i}.norm1"])
        shape = (*x.shape[:2], setting.heads, setting.head)
        q, k, v = ((h @ p[name]).reshape(shape) for name in ("q", "k", "v"))
        mixed = jax.nn.dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        x = x + mixed.reshape(x.shape) @ p["o"]
        h = norm(x, params[f"{i}.norm2"])
        x = x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
    logits = (norm(x, params["norm"]) @ params["embedding"].T).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def step_of(setting: Setting) -> Any:
    """Return the compiled step: (params, moments, number, tokens) -> (params, moments, loss)."""

    def step(
        params: Params, moments: tuple[Params, Params], number: jax.Array, tokens: jax.Array
    ) -> tuple[Params, tuple[Params, Params], jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(params, tokens, setting)
        first, second = moments
        b1, b2 = BETAS
        first = {n: b1 * first[n] + (1 - b1) * g for n, g in grads.items()}
        second = {n: b2 * second[n] + (1 - b2) * g * g for n, g in grads.items()}
        c1, c2 = 1 - b1**number, 1 - b2**number

        def updated(name: str, p: jax.Array) -> jax.Array:
            size = jnp.sqrt(second[name].astype(jnp.float32)) / jnp.sqrt(c2) + ADAM_EPS
            p32 = p.astype(jnp.float32) * (1 - LR * DECAY)
            return (p32 - LR / c1 * first[name].astype(jnp.float32) / size).astype(p.dtype)

        return {n: updated(n, p) for n, p in params.items()}, (first, second), loss

    return jax.jit(step, donate_argnums=(0, 1))
