"""Wall time of calls that return when they are done: the CPU's timer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from time import perf_counter_ns

from fuselab.timers import Call, Keep, Timer


class WallTimer(Timer):
    """`time.perf_counter_ns` around each call, or around `batch` calls divided by their number."""

    name = "wall"

    def block(
        self, label: str, calls: Sequence[Call], batch: int = 1, keep: Keep | None = None
    ) -> None:
        samples = self._samples.setdefault(label, [])
        draw = random.Random().random
        for first in range(0, len(calls), batch):
            chunk = calls[first : first + batch]
            start = perf_counter_ns()
            for i, call in enumerate(chunk):
                out = call()
                # One result of the chunk is offered, none of them likelier than another.
                if draw() * (i + 1) < 1:
                    index, offered = first + i, out
            samples.append((perf_counter_ns() - start) / 1e3 / len(chunk))
            # The newest result outlives the clock, so that freeing it is not timed.
            if keep:
                keep.offer(index, offered)
            del out, offered
