"""Time of a call inside a CUDA graph: kernels and the gaps between them, without the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from fuselab.timers import Call, CannotTime, Keep, Timer, offer_all

MIN_US = 200.0


class GraphTimer(Timer):
    """A block's calls captured into one graph, replayed for 200 us or more between two events.

    One sample a block: the replays' time over the number of calls in them.
    """

    name = "graph"

    def __init__(self) -> None:
        super().__init__()
        self._stream = torch.cuda.Stream()

    def preparing(self) -> AbstractContextManager[object]:
        # A backward runs on the stream of its forward, and only one stream is captured.
        return torch.cuda.stream(self._stream)

    def block(
        self, label: str, calls: Sequence[Call], batch: int = 1, keep: Keep | None = None
    ) -> None:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                outputs = [call() for call in calls]
        except RuntimeError as error:
            # It leaves torch's random numbers in capture: no tensor can be drawn any more.
            reason = str(error).splitlines()[0]
            raise CannotTime(f"a CUDA graph cannot capture it: {reason}") from error
        self._replay(graph, 1)
        replays = max(1, math.ceil(MIN_US / max(self._replay(graph, 1), 1.0)))
        taken = self._replay(graph, replays)
        self._samples.setdefault(label, []).append(taken / replays / len(calls))
        offer_all(keep, outputs)

    def _replay(self, graph: torch.cuda.CUDAGraph, times: int) -> float:
        """Return the us that so many replays take, one after the other."""
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(times):
            graph.replay()
        after.record()
        torch.cuda.synchronize()
        return float(before.elapsed_time(after)) * 1e3
