"""Energy of a call: the GPU's own meter around a window of back-to-back calls."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from time import monotonic

from fuselab.counters import Counts, Task, counted, uncounted
from fuselab.counters.launch import Answer, answers

SOURCE = "nvml"
WINDOW_S = 0.5
PATIENCE_S = 30.0


class Energy:
    """NVML's total energy of the board, between two of its ticks, over the calls in between."""

    names = ("energy_j",)
    batch = 16

    def obstacle(self) -> str:
        if importlib.util.find_spec("pynvml") is None:
            return "nvidia-ml-py is not installed; pip install nvidia-ml-py"
        return ""

    def count(self, tasks: Sequence[Task], seconds: float) -> list[Counts]:
        return [self._counts(answer) for answer in answers("energy", tasks, seconds)]

    def _counts(self, answer: Answer) -> Counts:
        if "error" in answer:
            return uncounted(self.names, answer["error"], SOURCE)
        return counted({"energy_j": answer["joules"]}, SOURCE)


def joules_per_call(
    chunk: Callable[[], int],
    read_mj: Callable[[], int],
    clock: Callable[[], float] = monotonic,
) -> float:
    """Return the energy of one call, from chunks of calls that end when the device is done.

    The meter ticks a few times a second, so the window opens and closes on a tick.
    """
    begin, calls, last = clock(), 0, read_mj()
    opened: tuple[float, int, int] | None = None
    while (now := clock()) - begin < PATIENCE_S:
        calls += chunk()
        energy = read_mj()
        if energy == last:
            continue
        now, last = clock(), energy
        if opened is None:
            opened = (now, energy, calls)
        elif now - opened[0] >= WINDOW_S:
            return (energy - opened[1]) / 1e3 / (calls - opened[2])
    raise RuntimeError(f"NVML's energy counter did not change for {PATIENCE_S:g} s")
