"""The first phase of a run: what compiles is compiled in parallel, for the worker that measures."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from time import monotonic

import torch

from fuselab import environment, rivals, runner
from fuselab.commands.measuring import gpus
from fuselab.commands.progress import Steps
from fuselab.model import Group
from fuselab.output.plain import say
from fuselab.processes import caches
from fuselab.runner import Worker, WorkerError
from fuselab.worker.implementations.baselines import COMPILE

MOST_PROCESSES = 8  # of a GPU
# With fewer groups the processes take longer to start than they save.
FEWEST_GROUPS = 4
TRITON = "triton"


def run(
    groups: Sequence[Group],
    device: str,
    timeout: float,
    log: str,
    until: float = inf,
    names: Sequence[str] = (),
) -> None:
    """Fill the compilers' caches with what the groups need, where several processes pay.

    What is not compiled at the time `until` (of time.monotonic) is left. `names` are of GPUs that
    the processes are for, by turns.

    Gives no verdicts: what fails here is met again, and judged, by the worker that measures.
    """
    marks = Marks()
    tasks = [replace(g, impls=chosen) for g in groups if (chosen := _compiling(g, marks))]
    count = min(MOST_PROCESSES * max(1, len(names)), max(2, cores() // 2), cores(), len(tasks))
    if count < 2 or len(tasks) < FEWEST_GROUPS or _choices_are_stored():
        return
    total, compiled = sum(len(task.impls) for task in tasks), 0
    say(f"compiling {total} implementations in parallel, {count} processes")
    begin = monotonic()
    with (
        closing(_spread(tasks, count, device, timeout, log, names)) as found,
        Steps(len(tasks)) as steps,
    ):
        for group, ran in found:
            compiled += len(ran)
            marks.set(group, ran)
            steps.step(group.key, f"ready: {', '.join(ran) or 'none'}")
            if monotonic() > until:
                break
    say(f"compiled {compiled} of {total} in {monotonic() - begin:.0f} s")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Marks:
    """What was compiled into these caches before: empty files beside what they stand for."""

    def __init__(self) -> None:
        self._folder = Path(caches.variables()["TORCHINDUCTOR_CACHE_DIR"]) / "fuselab-prepared"
        self._software = [environment.version(name) for name in ("torch", "triton")]

    def has(self, group: Group, impl: str) -> bool:
        return self._file(group, impl).exists()

    def set(self, group: Group, impls: Iterable[str]) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for impl in impls:
            self._file(group, impl).touch()

    def _file(self, group: Group, impl: str) -> Path:
        known = json.dumps([group.key, group.code, impl, *self._software])
        return self._folder / hashlib.sha256(known.encode()).hexdigest()[:16]


def _compiling(group: Group, marks: Marks) -> tuple[str, ...]:
    """Return the implementations that compile when they are first called, as far as names tell."""
    on_gpu = group.device.startswith("cuda")
    others = {rival.name for rival in rivals.of(group.op).values()}
    named = [n for n in group.impls if n == COMPILE or (on_gpu and (TRITON in n or n in others))]
    return tuple(n for n in named if not marks.has(group, n))


def _choices_are_stored() -> bool:
    """Say whether a compiler would store what it finds fastest while others use the device."""
    triton = os.environ.get("TRITON_CACHE_AUTOTUNING", "")
    inductor = torch._inductor.config
    return bool(inductor.max_autotune or inductor.max_autotune_gemm or triton)


def _spread(
    tasks: Sequence[Group], count: int, device: str, timeout: float, log: str, names: Sequence[str]
) -> Generator[tuple[Group, tuple[str, ...]], None, None]:
    """Yield each task with the names that ran, when one of `count` processes is done with it."""
    left, share = iter(tasks), 1 / (2 * ceil(count / max(1, len(names))))

    def serve(worker: Worker) -> Iterator[tuple[Group, tuple[str, ...]]]:
        try:
            for task in left:
                yield task, worker.ask("prepare", task, share).results
        except WorkerError:
            pass  # a worker that cannot start is an error once it shall measure

    return runner.spread(gpus.workers(count, device, timeout, log, names), serve)
