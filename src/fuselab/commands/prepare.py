"""The first phase of a run: what compiles is compiled in parallel, for the worker that measures."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from multiprocessing import Pipe
from queue import SimpleQueue
from time import monotonic

from torch._inductor import config as inductor

from fuselab.commands.progress import Steps
from fuselab.model import Group
from fuselab.runner import Cancelled, Worker, WorkerError
from fuselab.worker import process
from fuselab.worker.baselines import COMPILE

MOST_PROCESSES = 8
# With fewer groups the processes take longer to start than they save.
FEWEST_GROUPS = 4
TRITON = "triton"


def run(groups: Sequence[Group], device: str, timeout: float, log: str) -> None:
    """Fill the compilers' caches with what the groups need, where several processes pay.

    Gives no verdicts: what fails here is met again, and judged, by the worker that measures.
    """
    tasks = [replace(g, impls=chosen) for g in groups if (chosen := _compiling(g))]
    count = min(MOST_PROCESSES, cores() // 2, len(tasks))
    if count < 2 or len(tasks) < FEWEST_GROUPS or _choices_are_stored():
        return
    total, compiled = sum(len(task.impls) for task in tasks), 0
    _say(f"compiling {total} implementations in parallel, {count} processes")
    begin = monotonic()
    with (
        closing(_spread(tasks, count, device, timeout, log)) as found,
        Steps(len(tasks)) as steps,
    ):
        for group, names in found:
            compiled += len(names)
            steps.step(group.key, f"ready: {', '.join(names) or 'none'}")
    _say(f"compiled {compiled} of {total} in {monotonic() - begin:.0f} s")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compiling(group: Group) -> tuple[str, ...]:
    """Return the implementations that compile when they are first called, as far as names tell."""
    on_gpu = group.device.startswith("cuda")
    return tuple(n for n in group.impls if n == COMPILE or (on_gpu and TRITON in n))


def _choices_are_stored() -> bool:
    """Say whether a compiler would store what it finds fastest while others use the device."""
    triton = os.environ.get("TRITON_CACHE_AUTOTUNING", "")
    return bool(inductor.max_autotune or inductor.max_autotune_gemm or triton)


def _spread(
    tasks: Sequence[Group], count: int, device: str, timeout: float, log: str
) -> Generator[tuple[Group, tuple[str, ...]], None, None]:
    """Yield each task with the names that ran, when one of `count` processes is done with it."""
    left = iter(tasks)
    done: SimpleQueue[tuple[Group, tuple[str, ...]] | None] = SimpleQueue()
    cancel, stop = Pipe(duplex=False)

    def serve() -> None:
        try:
            with Worker(process.main, device, timeout, log, cancel=cancel) as worker:
                for task in left:
                    done.put((task, worker.ask("prepare", task, 1 / (2 * count)).results))
        except (WorkerError, Cancelled):
            pass  # a worker that cannot start is an error once it shall measure
        finally:
            done.put(None)

    with cancel, ThreadPoolExecutor(count) as pool, stop:
        for _ in range(count):
            pool.submit(serve)
        for _ in range(count):
            yield from iter(done.get, None)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
