"""Trains one variant and notes losses, times and memory; each runs in a process of its own."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

from fuselab.machine.load import OtherLoad, told
from fuselab.statistics import stats
from fuselab.training.record import Trained, later
from fuselab.training.setting import ADAM_EPS, BETAS, DECAY, LR, SETTINGS, batches, weights

TORCH = ("eager", "compile", "eager + fuseline", "compile + fuseline")
VARIANTS = (*TORCH, "jax")


def train(variant: str, size: str, steps: int, device: str) -> Trained:
    """Train so many steps; ImportError if the variant needs what is not installed."""
    # Both frameworks take all cores of a CPU; beside a GPU one thread prepares the steps.
    with OtherLoad(None if device == "cpu" else 1) as load:
        found = (_jax if variant == "jax" else _torch)(variant, size, steps, device)
    return replace(found, noise=told(load.disturbance, stats.scatter(later(found.seconds))))


def _torch(variant: str, size: str, steps: int, device: str) -> Trained:
    import torch

    import fuseline
    from fuselab.training.torch_model import Model, loss_of

    setting = SETTINGS[size]
    torch.set_float32_matmul_precision("highest")
    model: torch.nn.Module = Model(setting, weights(setting), device)
    patched = str(fuseline.patch(model)) if "fuseline" in variant else ""
    run = torch.compile(model, dynamic=False) if "compile" in variant else model
    adam = torch.optim.AdamW(
        model.parameters(), LR, BETAS, ADAM_EPS, DECAY, fused=device != "cpu" or None
    )
    wait: Callable[[], Any] = torch.cuda.synchronize if device != "cpu" else lambda: None
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    losses, seconds = [], []
    for tokens in batches(setting, steps):
        given = torch.tensor(tokens, dtype=torch.int64, device=device)
        wait()
        begin = perf_counter()
        loss = loss_of(run, given)
        loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)
        wait()
        seconds.append(perf_counter() - begin)
        losses.append(loss.item())
    peak = torch.cuda.max_memory_allocated() if device != "cpu" else _resident()
    return Trained(
        variant, f"torch {torch.__version__}", tuple(losses), tuple(seconds), peak, patched
    )


def _jax(variant: str, size: str, steps: int, device: str) -> Trained:
    import jax
    import jax.numpy as jnp

    from fuselab.training.jax_model import parameters, step_of

    setting = SETTINGS[size]
    jax.config.update("jax_default_matmul_precision", "highest")
    where = jax.devices("cpu" if device == "cpu" else "gpu")[0]
    with jax.default_device(where):
        params = parameters(setting, weights(setting))
        moments = tuple({n: jnp.zeros_like(p) for n, p in params.items()} for _ in range(2))
        step = step_of(setting)
        losses, seconds = [], []
        for number, tokens in enumerate(batches(setting, steps), 1):
            given = jnp.asarray(tokens)
            begin = perf_counter()
            params, moments, loss = step(params, moments, float(number), given)
            losses.append(float(loss))
            jax.block_until_ready(params)
            seconds.append(perf_counter() - begin)
    stats = where.memory_stats() or {}
    peak = int(stats.get("peak_bytes_in_use", _resident()))
    return Trained(variant, f"jax {jax.__version__}", tuple(losses), tuple(seconds), peak, "")


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
