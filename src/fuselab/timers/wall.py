"""Wall time of calls that return when they are done: the CPU's timer."""

from __future__ import annotations

from collections.abc import Sequence, Set
from time import perf_counter_ns

from fuselab.timers import NONE, Call, Timer


class WallTimer(Timer):
    """`time.perf_counter_ns` around each call, or around `batch` calls divided by their number."""

    name = "wall"

    def block(
        self, label: str, calls: Sequence[Call], batch: int = 1, keep: Set[int] = NONE
    ) -> dict[int, object]:
        kept: dict[int, object] = {}
        samples = self._samples.setdefault(label, [])
        for first in range(0, len(calls), batch):
            chunk = calls[first : first + batch]
            wanted = [i - first for i in range(first, first + len(chunk)) if i in keep]
            outputs: list[object] = [None] * len(chunk)
            last = wanted[-1] if wanted else -1
            start = perf_counter_ns()
            for i, call in enumerate(chunk):
                # The newest result outlives the clock, so that freeing it is not timed.
                out = call()
                if i <= last:
                    outputs[i] = out
            samples.append((perf_counter_ns() - start) / 1e3 / len(chunk))
            kept |= {first + i: outputs[i] for i in wanted}
            del outputs
        return kept
