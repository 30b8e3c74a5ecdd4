"""Compile time: from before an implementation is made to the end of its first call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fuselab import caches
from fuselab.counters import Counts, Task, counted, uncounted
from fuselab.counters.launch import answers

SOURCE = "fresh process"
# What the driver and torch's jiterator compile; `fuselab.caches` has Inductor's and Triton's.
OTHER_CACHES = ("CUDA_CACHE_PATH", "PYTORCH_KERNEL_CACHE_PATH")


class CompileTime:
    """Two fresh processes a cell: with empty caches of its own, then with what the first left."""

    names = ("compile_cold_s", "compile_warm_s")
    batch = 1

    def obstacle(self) -> str:
        return ""

    def count(self, tasks: Sequence[Task], seconds: float) -> list[Counts]:
        return [self._count(task, seconds) for task in tasks]

    def _count(self, task: Task, seconds: float) -> Counts:
        found: Counts = {}
        with caches.fresh() as folders:
            env = _with_others(folders)
            for name in self.names:
                (answer,) = answers("compile", [task], seconds, env)
                if "error" in answer:
                    return found | uncounted(
                        (n for n in self.names if n not in found), answer["error"], SOURCE
                    )
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
