"""What no cold call can beat: the datasheet's bandwidth of the memory."""

from __future__ import annotations

from statistics import median

import torch

from fuselab import environment
from fuselab.model import Status
from fuselab.planning.plan import HOST
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.measuring.timing import Arena, Timing
from fuselab.worker.tensors.inputs import cache_bytes

MEMORY_CLOCK = 2
# Both edges of the clock carry data; NVML gives MHz and bits.
TRANSFERS = 2
# Below this many caches, much of what a call needs may still be in one.
CACHES = 4
SHARE = 0.95


def peak_bandwidth(device: torch.device) -> float | None:
    """Return the bytes a second of the memory's width and highest clock, None where unknown."""
    handle = environment.nvml_handle(device) if device.type == "cuda" else None
    bits = handle and environment.ask_nvml("nvmlDeviceGetMemoryBusWidth", handle)
    mhz = handle and environment.ask_nvml("nvmlDeviceGetMaxClockInfo", handle, MEMORY_CLOCK)
    return bits / 8 * mhz * 1e6 * TRANSFERS if bits and mhz else None


def refuse_impossible(
    trial: Trial, needed: int, timing: Timing, arena: Arena, peak: float | None
) -> None:
    """End a trial that is faster than the `needed` bytes can come from memory."""
    reading = timing.readings.get(trial.name)
    if not (peak and reading and trial.proof.cold) or timing.timer == HOST:
        return
    if needed < CACHES * cache_bytes(arena.device):
        return
    took, least = median(reading.samples_us), needed / peak * 1e6
    if trial.alive and took < SHARE * least:
        trial.fail(
            Status.INVALID,
            f"{took:.1f} us for {needed} bytes, which this memory needs {least:.1f} us to move",
        )
