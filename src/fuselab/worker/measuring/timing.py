"""What a cell's timing consists of: timers, input sets, calls a round, readings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch

from fuselab.model import Status
from fuselab.precision import Level
from fuselab.timers import Call, Reading, Timer
from fuselab.timers.cupti import CuptiTimer
from fuselab.timers.events import EventsTimer
from fuselab.timers.graph import GraphTimer
from fuselab.timers.host import HostTimer
from fuselab.timers.wall import WallTimer
from fuselab.worker.implementations.baselines import COMPILE
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.protocol import Emit, judge, synchronize
from fuselab.worker.tensors.inputs import COLD_FACTOR, MEMORY_SHARE, cache_bytes, free_bytes

WARM_CALLS = 3
MIN_BATCH_US = 20.0
# Seconds of timed calls that a sweep of rounds aims at for each cell, and most samples a round.
SWEEP_S = {"cuda": 0.15, "cpu": 0.2}
MOST_SAMPLES = 20
HOT = " (hot)"
TIMERS: Mapping[str, Callable[[], Timer]] = {
    timer.name: timer for timer in (CuptiTimer, GraphTimer, EventsTimer, HostTimer, WallTimer)
}


@dataclass(frozen=True)
class Arena:
    """The inputs that rotate.

    refresh  gives the sets new contents before another round
    renew    changes what the next calls (their number) find; in another order of the sets or not
    renew_gradients  does so to the output gradients, once the forwards of these calls have run
    written  names the tensors that the calls since then wrote to
    """

    device: torch.device
    sets: int
    set_bytes: int
    refresh: Callable[[], None] = lambda: None
    renew: Callable[[int, bool], None] = lambda count, shuffle: None
    renew_gradients: Callable[[int], None] = lambda count: None
    written: Callable[[], tuple[str, ...]] = tuple

    @property
    def rotates_cold(self) -> bool:
        """Whether more bytes pass between two uses of a set than the cache could keep."""
        return self.sets * self.set_bytes >= COLD_FACTOR * cache_bytes(self.device)

    @property
    def scrubs(self) -> bool:
        """Whether a block must begin with an emptied cache to be cold."""
        return self.device.type == "cuda" and not self.rotates_cold


@dataclass(frozen=True)
class Plan:
    """How many calls a round, how many share one sample, how many fit in memory at a time."""

    calls: int
    batch: int
    room: int


@dataclass
class Timing:
    """What the rounds gave so far, by implementation, and what disturbed them, or ""."""

    timer: str
    readings: dict[str, Reading] = field(default_factory=dict)
    hot_us: dict[str, tuple[float, ...]] = field(default_factory=dict)
    disturbance: dict[str, str] = field(default_factory=dict)

    def add(self, found: Mapping[str, Reading]) -> None:
        """Take in the readings of a sweep."""
        for label, reading in found.items():
            name = label.removesuffix(HOT)
            if label != name:
                self.hot_us[name] = self.hot_us.get(name, ()) + reading.samples_us
            elif name not in self.readings:
                self.readings[name] = reading
            else:
                before = self.readings[name]
                self.readings[name] = replace(
                    reading,
                    samples_us=before.samples_us + reading.samples_us,
                    steady=before.steady and reading.steady and before.kernels == reading.kernels,
                    joined=before.joined and reading.joined,
                )


def make_timer(device: torch.device, name: str = "") -> Timer:
    """Return the named timer, or that of the device: kernel time on a GPU, wall time on a CPU."""
    return TIMERS[name or ("cupti" if device.type == "cuda" else "wall")]()


def warm(trial: Trial, device: torch.device, emit: Emit) -> None:
    """Run a few untimed calls and note about how long one takes and how much it holds."""
    emit("start", trial.name, "compile" if trial.name == COMPILE else "warm-up")
    with trial.around, trial.compiling if trial.name == COMPILE else nullcontext():
        try:
            before = _allocated(device)
            calls = trial.make_calls(WARM_CALLS, 1)
            trial.call_us = min(_elapsed_us(call, device) for call in calls)
            if device.type == "cuda":
                held = torch.cuda.max_memory_allocated(device) - before
                trial.call_bytes = held // WARM_CALLS
        except (Exception, SystemExit) as error:
            trial.fail(Status.ERROR, judge(error, trial.name, "warm-up", device))


def plan(trials: Sequence[Trial], device: torch.device, level: Level) -> dict[str, Plan]:
    """Return the plan of each trial, from how long its warm calls took."""
    return {trial.name: _plan(trial, device, level) for trial in trials}


def _plan(trial: Trial, device: torch.device, level: Level) -> Plan:
    call_s = max(trial.call_us, 1e-3) / 1e6
    room = max(1, int(MEMORY_SHARE * free_bytes(device)) // max(1, trial.call_bytes))
    least = math.ceil(level.samples / level.rounds)
    if level.cap_s:
        # A call so long that the least number of samples is beyond the cap gets what fits.
        least = max(1, min(least, int(level.cap_s / level.rounds / call_s)))
    samples = max(least, min(MOST_SAMPLES, int(SWEEP_S[device.type] / level.rounds / call_s)))
    batch = 1
    if device.type == "cpu" and trial.call_us < MIN_BATCH_US:
        batch = int(MIN_BATCH_US / max(trial.call_us, 0.5)) + 1
    return Plan(min(samples, room) * batch, batch, room)


def _allocated(device: torch.device) -> int:
    """Return the memory in use, and start to watch its peak from here."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _elapsed_us(call: Call, device: torch.device) -> float:
    start = perf_counter()
    call()
    synchronize(device)
    return (perf_counter() - start) * 1e6
