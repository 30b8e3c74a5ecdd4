"""Our RMSNorm within JAX programs, beside XLA's own: values, gradients, what XLA sees, time."""

from functools import partial
from time import perf_counter

import jax
import jax.numpy as jnp

from fuseline.jax import rms_norm

ROUNDS, CALLS = 15, 20
PROBLEMS = {"cpu": (2048, 1024, jnp.float32), "gpu": (32768, 4096, jnp.bfloat16)}


def plain(x, weight):
    x32, weight32 = x.astype(jnp.float32), weight.astype(jnp.float32)
    y = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + 1e-6) * weight32
    return y.astype(x.dtype)


def forward(norm, x, weight, _):
    return norm(x, weight)


def forward_and_backward(norm, x, weight, dy):
    y, vjp = jax.vjp(norm, x, weight)
    return y, *vjp(dy)


def milliseconds(step, given):
    times = []
    for _ in range(ROUNDS):
        begin = perf_counter()
        for _ in range(CALLS):
            done = step(*given)
        jax.block_until_ready(done)
        times.append(1e3 * (perf_counter() - begin) / CALLS)
    return sorted(times)[ROUNDS // 2]


def show(device, rows, n, dtype):
    keys = jax.random.split(jax.random.key(0), 3)
    given = [
        jax.device_put(jax.random.normal(key, shape, dtype), device)
        for key, shape in zip(keys, ((rows, n), (n,), (rows, n)), strict=True)
    ]
    print(f"{device.device_kind}, {rows} x {n}, {jnp.dtype(dtype).name}")
    for direction in (forward, forward_and_backward):
        results = []
        for name, norm in (("our kernel", rms_norm), ("XLA's", plain)):
            step = jax.jit(partial(direction, norm)).lower(*given).compile()
            results.append(step(*given))
            text, took = step.as_text(), milliseconds(step, given)
            calls, fusions = text.count("custom_call_target"), text.count(" fusion(")
            what = direction.__name__.replace("_", " ")
            print(f"  {what}, {name}: {took:.3f} ms, {fusions} fusions, {calls} custom calls")
        ours, theirs = ([t.astype(jnp.float32) for t in jax.tree.leaves(r)] for r in results)
        apart = [jnp.abs(a - b).max() / jnp.abs(b).max() for a, b in zip(ours, theirs, strict=True)]
        print(f"  apart, relative to the largest: {', '.join(f'{a:.1e}' for a in apart)}")


def main():
    for platform in dict.fromkeys(("cpu", jax.default_backend())):
        show(jax.devices(platform)[0], *PROBLEMS[platform])


if __name__ == "__main__":
    main()
