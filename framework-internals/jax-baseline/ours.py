"""Our C++ RMSNorm within a JAX program, beside XLA's own: values, gradients, what XLA sees."""

from time import perf_counter

import jax
import jax.numpy as jnp

from fuseline.jax import rms_norm

ROUNDS = 20
DRAWN = ((0, (2048,)), (1, ()))  # x of 2048 x 1024, weight of 1024


def plain(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weight


def loss_by(norm):
    return jax.jit(jax.value_and_grad(lambda x, w: jnp.sum(jnp.sin(norm(x, w))), argnums=(0, 1)))


def milliseconds(step, *given):
    times = []
    for _ in range(ROUNDS):
        begin = perf_counter()
        jax.block_until_ready(step(*given))
        times.append(1e3 * (perf_counter() - begin))
    return sorted(times)[ROUNDS // 2]


def main():
    with jax.default_device(jax.devices("cpu")[0]):
        x, weight = (jax.random.normal(jax.random.key(n), (*rows, 1024)) for n, rows in DRAWN)
        ours, theirs = loss_by(rms_norm), loss_by(plain)
        (loss, grads), (loss2, grads2) = ours(x, weight), theirs(x, weight)
        apart = max(float(jnp.abs(a - b).max()) for a, b in zip(grads, grads2, strict=True))
        print(f"loss {loss:.4f} by our kernel, {loss2:.4f} by XLA's; gradients within {apart:.1e}")
        for name, step in (("our kernel", ours), ("XLA's", theirs)):
            text = step.lower(x, weight).compile().as_text()
            calls, fusions = text.count("custom_call_target"), text.count(" fusion(")
            took = milliseconds(step, x, weight)
            print(f"{name}: {took:.2f} ms, {fusions} fusions, {calls} custom calls")


if __name__ == "__main__":
    main()
