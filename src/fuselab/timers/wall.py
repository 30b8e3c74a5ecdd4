"""Wall time of calls that return when they are done: the CPU's timer."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from types import TracebackType

from fuselab.timers import Call, Reading, Timer


class WallTimer:
    """`time.perf_counter_ns` around each call, or around `batch` calls divided by their number."""

    name = "wall"

    def __init__(self) -> None:
        self._samples: dict[str, list[float]] = {}

    def __enter__(self) -> Timer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def block(self, label: str, calls: Sequence[Call], batch: int = 1) -> object:
        out: object = None
        samples = self._samples.setdefault(label, [])
        for first in range(0, len(calls), batch):
            chunk = calls[first : first + batch]
            out = None
            start = perf_counter_ns()
            # `out` outlives the clock, so that freeing the last result is not timed.
            for call in chunk:
                out = call()
            samples.append((perf_counter_ns() - start) / 1e3 / len(chunk))
        return out

    def readings(self) -> dict[str, Reading]:
        return {label: Reading(tuple(found), {}) for label, found in self._samples.items()}
