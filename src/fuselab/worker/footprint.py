"""What a call needs besides time: memory, launches, copies, the CPU's share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from fuselab.machine.lock import host_lock
from fuselab.timers import Call
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.protocol import synchronize
from fuselab.worker.tensors.inputs import tensors
from fuselab.worker.tensors.problem import Problem
from fuseline.core import native
from fuseline.testing.oracle import accuracy

HOST_CALLS = {"fwd": 100, "bwd": 40}
# What the autograd engine wraps around each backward operator.
ENGINE = "autograd::engine"


def weigh(trial: Trial, device: torch.device, room: int) -> None:
    """Note peak memory, layout copies and host time; at most `room` calls fit at a time."""
    copies = native.copies()
    (call,) = trial.make_calls(1, 1)
    if device.type == "cuda":
        trial.peak_bytes = _device_peak(call, device)
    else:
        trial.peak_bytes, operators = cpu_profile(call)
        launches = sum(operators.values())
        trial.proof = replace(trial.proof, kernels=operators, launches=launches)
    trial.proof = replace(trial.proof, copies=native.copies() - copies)
    if device.type == "cuda":
        calls = trial.make_calls(min(HOST_CALLS[trial.cell.direction], room), 1)
        with host_lock():
            trial.host_us = median(_host_us(calls))
            synchronize(device)


def given_bytes(problem: Problem, fn: Callable[..., Any]) -> int:
    """Return the bytes a call finds: its inputs; a backward the output's gradients and what the
    forward saved, too.
    """
    given = problem.sets[0]
    if problem.direction == "fwd":
        return given.nbytes
    saved: dict[int, int] = {}
    names = accuracy.gradient_names(problem.spec, given.inputs)
    leaves = {n: given.inputs[n].detach().requires_grad_() for n in names}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: _hold(saved, t), lambda t: t):
        fn(**{**given.inputs, **leaves})
    known: dict[int, int] = {}
    for tensor in tensors(given.inputs).values():
        _hold(known, tensor)
    return given.nbytes + sum(size for pointer, size in saved.items() if pointer not in known)


def _hold(held: dict[int, int], tensor: Tensor) -> Tensor:
    """Note the storage of a tensor and return the tensor, as a pack hook must."""
    storage = tensor.untyped_storage()
    held[storage.data_ptr()] = storage.nbytes()
    return tensor


def _device_peak(call: Call, device: torch.device) -> int:
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def cpu_profile(call: Call) -> tuple[int, dict[str, int]]:
    """Return the peak of torch's CPU allocations, and the outermost operators with their count."""
    # What is below torch.profiler: that loads torch's compiler to ask for one of its settings.
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        kept = call()
    del kept
    used = peak = end = 0
    operators: Counter[str] = Counter()
    results = profiler.kineto_results
    for event in sorted(results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            used += event.nbytes()
            peak = max(peak, used)
        elif event.start_ns() >= end and not event.name().startswith(ENGINE):
            end = event.end_ns()
            operators[event.name()] += 1
    return peak, dict(operators)


def _host_us(calls: Iterable[Call]) -> Iterable[float]:
    for call in calls:
        start = perf_counter_ns()
        call()
        yield (perf_counter_ns() - start) / 1e3
