"""Compile time: from before an implementation is made to the end of its first call."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from fuselab.counters import Counts, Task, counted, uncounted
from fuselab.counters.launch import Child, ChildError
from fuselab.processes import caches

SOURCE = "fresh process"
# What the driver and torch's jiterator compile; `processes.caches` has Inductor's and Triton's.
OTHER_CACHES = ("CUDA_CACHE_PATH", "PYTORCH_KERNEL_CACHE_PATH")


class CompileTime:
    """Two fresh processes a cell: with empty caches of its own, then with what the first left."""

    names = ("compile_cold_s", "compile_warm_s")
    batch = 4  # processes that load at the same time, two a cell; they work one after the other

    def obstacle(self) -> str:
        return ""

    def count(self, tasks: Sequence[Task], seconds: float) -> list[Counts]:
        with ExitStack() as stack:
            children = [self._start(task, stack) for task in tasks]
            for child in itertools.chain(*children):
                child.load(seconds)
            return [self._count(cell, seconds) for cell in children]

    def _start(self, task: Task, stack: ExitStack) -> list[Child]:
        env = _with_others(stack.enter_context(caches.fresh()))
        return [stack.enter_context(Child("compile", [task], env=env)) for _ in self.names]

    def _count(self, children: Sequence[Child], seconds: float) -> Counts:
        found: Counts = {}
        for name, child in zip(self.names, children, strict=True):
            try:
                (answer,) = child.answers(seconds)
            except ChildError as error:
                answer = {"error": str(error)}
            if "error" in answer:
                missing = [n for n in self.names if n not in found]
                return found | uncounted(missing, answer["error"], SOURCE)
            found |= counted({name: answer["seconds"]}, SOURCE)
        return found


def _with_others(folders: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that keeps everything compiled in the private folder."""
    root = Path(folders["TRITON_CACHE_DIR"]).parent
    env = dict(folders)
    for variable in OTHER_CACHES:
        place = root / variable.lower()
        place.mkdir(mode=0o700)
        env[variable] = str(place)
    return env
