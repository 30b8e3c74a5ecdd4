"""The roofs of a device: bytes a second by mix of streams and size, FLOPs a second."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from statistics import median
from typing import Any

import torch

from fuselab.machine.load import told
from fuselab.model import Group
from fuselab.planning.plan import CEILING
from fuselab.precision import LEVELS
from fuselab.timers import Call
from fuselab.worker.device.ceiling import MIXES, Streams, peak_bytes
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.measuring.rounds import race
from fuselab.worker.protocol import Emit
from fuseline.core import native
from fuseline.core.specs.spec import Cost

SIZES = {
    "cuda": (4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30, 4 << 30),
    "cpu": (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20),
}
MATMULS = {
    "cuda": {"bfloat16": 8192, "float16": 8192, "float32": 4096, "float64": 4096},
    "cpu": {"bfloat16": 512, "float32": 1024, "float64": 512},
}
TORCH, OWN = "torch", "fuselab"
FMA, FMA_ROUNDS = "fma", 256
FLOPS_A_ROUND = 512  # of one thread of fuselab::fma
THREADS_AN_SM = 2048
# How often something is timed that others disturb, before it counts as unknown.
ATTEMPTS = 3


class Disturbed(Exception):
    """Others needed what was timed each time; the text says what they did."""


def measure(device: torch.device, emit: Emit) -> dict[str, Any]:
    """Return memory[mix][bytes][kernels] in GB/s, and compute[what] in FLOP/s.

    Kernels are torch's and, where the binary has them, the lab's own. Disturbed if other work on
    the machine did not let it be measured.
    """
    found: dict[str, Any] = {"memory": {mix: {} for mix in MIXES}, "compute": {}}
    largest, _ = peak_bytes(device)
    for nbytes in SIZES[device.type]:
        if nbytes <= largest:
            emit("start", "", f"streams of {nbytes >> 20} MiB")
            for (mix, kernels), gbps in _streams(device, nbytes, emit).items():
                found["memory"][mix].setdefault(str(nbytes), {})[kernels] = gbps
    emit("start", "", "matrix products")
    found["compute"] = _compute(device, emit)
    return found


def _streams(device: torch.device, nbytes: int, emit: Emit) -> dict[tuple[str, str], float]:
    memory: list[torch.Tensor] = []
    kinds = [TORCH]
    if device.type == "cuda" and native.status().has("cuda"):
        kinds.append(OWN)
    trials = []
    for mix in MIXES:
        for kind in kinds:
            streams = Streams(mix, nbytes, device, memory, own=kind == OWN)
            trials.append(_trial(device, f"{mix} {kind}", streams.calls, streams.cost))
    times = _times(trials, device, nbytes, emit)
    return {
        (mix, kind): trial.cost.bytes / times[trial.name] / 1e3
        for trial in trials
        for mix, kind in [trial.name.split()]
    }


def _compute(device: torch.device, emit: Emit) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, n in MATMULS[device.type].items():
        with suppress(RuntimeError):  # a dtype that this device has no product of
            found |= _rate(_matmul(device, name, n), device, emit)
    if device.type == "cuda" and native.status().has("cuda"):
        found |= _rate(_fma(device), device, emit)
    return found


def _rate(trial: Trial, device: torch.device, emit: Emit) -> dict[str, float]:
    times = _times([trial], device, trial.cost.bytes, emit)
    return {trial.name: trial.cost.flops / times[trial.name] * 1e6}


def _matmul(device: torch.device, name: str, n: int) -> Trial:
    dtype: torch.dtype = getattr(torch, name)
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    cost = Cost(2 * a.nbytes, a.nbytes, 2 * n**3)

    def calls(count: int, sets: int) -> list[Call]:
        return [lambda: torch.mm(a, b, out=out)] * count

    return _trial(device, f"{name} matmul {n}", calls, cost)


def _fma(device: torch.device) -> Trial:
    threads = torch.cuda.get_device_properties(device).multi_processor_count * THREADS_AN_SM
    out = torch.empty(threads, device=device)
    cost = Cost(0, out.nbytes, threads * FMA_ROUNDS * FLOPS_A_ROUND)

    def calls(count: int, sets: int) -> list[Call]:
        return [lambda: torch.ops.fuselab.fma(out, FMA_ROUNDS)] * count

    return _trial(device, f"float32 {FMA}", calls, cost)


def _trial(device: torch.device, name: str, calls: Any, cost: Cost) -> Trial:
    group = Group(CEILING, "roofs", "float32", "fwd", "contiguous", str(device), (name,))
    return Trial(group.cell(name), calls, cost)


def _times(
    trials: Sequence[Trial], device: torch.device, nbytes: int, emit: Emit
) -> dict[str, float]:
    """Return the median time of each trial in us, all interleaved, cold."""
    reason = ""
    for _ in range(ATTEMPTS):
        timed = race(trials, device, nbytes, LEVELS["quick"], emit)
        for trial in trials:
            if not trial.alive:
                raise RuntimeError(trial.reason)
        found = {trial.name: median(timed.readings[trial.name].samples_us) for trial in trials}
        reason = told(*(timed.disturbance[trial.name] for trial in trials))
        if min(found.values()) <= 0:
            raise Disturbed("the timer read a call of no time")
        if not reason:
            return found
    raise Disturbed(reason)
