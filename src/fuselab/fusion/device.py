"""What is measured of a call: kernels on a GPU, and peak memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuselab.fusion.record import DEVICE, Kernel
from fuselab.timers.cupti import CuptiTimer
from fuselab.worker.footprint import cpu_profile

CALLS = 3
LABEL = "call"
PEAK, NOW = (f"requested_bytes.all.{what}" for what in ("peak", "current"))

Call = Callable[[], Any]


class UnsteadyError(RuntimeError):
    """The kernels of a call cannot be told; the text says why."""


def kernels(call: Call) -> tuple[Kernel, ...]:
    """Return the kernels, copies and fills that a call runs on the GPU, by CUPTI."""
    with CuptiTimer() as timer:
        timer.block(LABEL, [call] * CALLS)
    CuptiTimer.release()
    reading = timer.readings()[LABEL]
    if not reading.steady:
        raise UnsteadyError(f"{CALLS} calls on the same inputs ran different kernels")
    if not reading.joined:
        raise UnsteadyError("the call left work on a stream that its own does not wait for")
    return tuple(
        Kernel(name, DEVICE) for name, count in reading.kernels.items() for _ in range(count)
    )


def peak(call: Call, place: torch.device) -> int:
    """Return the most bytes that a call had allocated at once, beyond what there was before."""
    if place.type == "cpu":
        return cpu_profile(call)[0]
    torch.cuda.synchronize(place)
    torch.cuda.reset_peak_memory_stats(place)
    before = torch.cuda.memory_stats(place)[NOW]
    results = call()
    torch.cuda.synchronize(place)
    most = torch.cuda.memory_stats(place)[PEAK]
    del results
    return int(most - before)
