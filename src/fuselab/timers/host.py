"""Time that the CPU spends on a call without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import torch

from fuselab.timers import Call, Keep, Timer


class HostTimer(Timer):
    """`time.perf_counter_ns` around a call that only queues its work."""

    name = "host"
    # A full queue makes the host wait for the device. It holds about a thousand launches, and a
    # call of eager takes a dozen.
    MOST_IN_FLIGHT = 32

    def block(
        self, label: str, calls: Sequence[Call], batch: int = 1, keep: Keep | None = None
    ) -> None:
        samples = self._samples.setdefault(label, [])
        for i, call in enumerate(calls):
            if i % self.MOST_IN_FLIGHT == 0:
                torch.cuda.synchronize()
            start = perf_counter_ns()
            out = call()
            samples.append((perf_counter_ns() - start) / 1e3)
            if keep:
                keep.offer(i, out)
        torch.cuda.synchronize()
