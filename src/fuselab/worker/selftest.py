"""A quick test of the timer: work of known relative length must read so."""

from __future__ import annotations

from statistics import median
from time import sleep
from typing import Any

import torch

from fuselab.timers import TimerError
from fuselab.worker.timing import make_timer

CALLS = 20
TOLERANCE = 0.05
CPU_US = 5000.0
GPU_WORDS = 1 << 26


def run(device: torch.device) -> dict[str, Any]:
    """Time a known piece of work and twice as much; `ok` says whether the readings agree."""
    timer = make_timer(device)
    try:
        with timer:
            for label, factor in (("once", 1), ("twice", 2)):
                timer.block(label, [_work(device, factor)] * CALLS)
        readings = timer.readings()
    except (TimerError, RuntimeError) as error:
        return {"timer": timer.name, "ok": False, "reason": str(error)}
    once, twice = (median(readings[label].samples_us) for label in ("once", "twice"))
    ratio = twice / once if once else 0.0
    ok = abs(ratio - 2) <= 2 * TOLERANCE
    reason = "" if ok else f"twice the work reads {ratio:.3f} times as long"
    return {"timer": timer.name, "ok": ok, "reason": reason, "once_us": once, "twice_us": twice}


def _work(device: torch.device, factor: int) -> Any:
    if device.type == "cuda":
        source = torch.rand(GPU_WORDS * factor, device=device)
        out = torch.empty_like(source)
        return lambda: out.copy_(source)
    return lambda: sleep(CPU_US * factor / 1e6)
