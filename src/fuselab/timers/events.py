"""Time between two CUDA events around a call: what a user's own stopwatch would read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuselab.timers import Call, Keep, Reading, Timer, offer_all


class EventsTimer(Timer):
    """Elapsed time between events around each call, in us; about 3 us of it are the events' own.

    The device waits before each block while the host queues the calls, as far as that helps: what
    the host is late for is else read as time of the call.
    """

    name = "events"
    # Cycles for each queued call: 30 us at 2 GHz. A launch with its two events takes the host 14
    # (H200, 2026-11-22, with a call through torch.ops).
    HEAD_START = 60_000

    def __init__(self) -> None:
        super().__init__()
        self._marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {}

    def block(
        self, label: str, calls: Sequence[Call], batch: int = 1, keep: Keep | None = None
    ) -> None:
        outputs: list[object] = []
        marks = self._marks.setdefault(label, [])
        torch.cuda._sleep(self.HEAD_START * len(calls))
        for call in calls:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            outputs.append(call())
            after.record()
            marks.append((before, after))
        torch.cuda.synchronize()
        offer_all(keep, outputs)

    def readings(self) -> dict[str, Reading]:
        return {
            label: Reading(tuple(a.elapsed_time(b) * 1e3 for a, b in marks), {})
            for label, marks in self._marks.items()
        }
