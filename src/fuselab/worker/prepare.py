"""Before the measuring: implementations are called once, so that the caches hold their code."""

from __future__ import annotations

import gc
import importlib
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fuselab.model import Group, Status
from fuselab.worker.implementations import baselines
from fuselab.worker.protocol import Emit, Fatal, probe, synchronize
from fuselab.worker.tensors.problem import Problem, build
from fuseline.testing.oracle import accuracy

PHASE = "preparation"


def run(group: Group, share: float, emit: Emit) -> None:
    """Call each implementation of the group once and emit the names of those that ran.

    share: of the device's memory, for this process; what needs more is left out, like all that
    raises an error. Raises Fatal where the device is no longer right.
    """
    device = torch.device(group.device)
    _limit_memory(device, share)
    # The other cores are for the processes beside this one.
    torch._inductor.config.compile_threads = 1
    with forgetting_choices():
        for name in _prepared(group, emit):
            emit("result", name)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    sick = probe(device)
    if sick:
        raise Fatal("", Status.CRASHED, sick)


def _prepared(group: Group, emit: Emit) -> Iterator[str]:
    try:
        problem = build(group, emit)
    except Exception:
        return
    with torch.set_grad_enabled(problem.direction == "bwd"):
        for name in group.impls:
            emit("start", name, PHASE)
            if _runs(problem, name):
                yield name


def _runs(problem: Problem, name: str) -> bool:
    """Say whether an implementation can be called as the check of the measuring calls it first."""
    first = problem.first
    try:
        fn = baselines.make(problem.spec, name, problem.device.type)
        baselines.refuse(problem.spec, name, first.inputs, problem.direction)
        with baselines.around(name):
            accuracy.run(fn, problem.spec, first.inputs, problem.direction, first.dys)
        synchronize(problem.device)
    except (Exception, SystemExit):
        return False
    return True


@contextmanager
def forgetting_choices() -> Iterator[None]:
    """Have Inductor store no choice among the variants of a kernel.

    It benchmarks them at the first call, here beside other processes. With nothing stored, the
    measuring worker benchmarks again, alone.
    """
    cache: Any = importlib.import_module("torch._inductor.runtime.autotune_cache").AutotuneCache
    kept = cache.save

    # Kernels are pickled with their `save`, by its name.
    def save(self: Any, *arguments: Any, **options: Any) -> None:
        return None

    cache.save = save
    try:
        yield
    finally:
        cache.save = kept


def _limit_memory(device: torch.device, share: float) -> None:
    """Have an allocation beyond a share of the memory fail here, not in a process beside."""
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share, device)
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(share * memory), hard))
