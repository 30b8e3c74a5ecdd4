"""Interleaved rounds: every implementation is timed once a round, in rotating order."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from fuselab.model import Status
from fuselab.timers import Call, Reading, Timer, TimerError
from fuselab.timers.cupti import CuptiTimer
from fuselab.timers.wall import WallTimer
from fuselab.worker.baselines import COMPILE
from fuselab.worker.inputs import COLD_FACTOR, MEMORY_SHARE, cache_bytes, free_bytes
from fuselab.worker.load import OtherLoad
from fuselab.worker.protocol import Emit, Fatal, judge, synchronize
from fuselab.worker.trial import Trial

ROUNDS = 5
WARM_CALLS = 3
MIN_BATCH_US = 20.0
# device type: seconds of timed calls per cell, least and most samples a round.
LIMITS = {"cuda": (0.15, 3, 20), "cpu": (0.2, 1, 20)}


@dataclass(frozen=True)
class Arena:
    """The inputs that rotate; `overwritten` names those that a call changed, and mends them."""

    device: torch.device
    sets: int
    set_bytes: int
    overwritten: Callable[[], tuple[str, ...]]

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


@dataclass(frozen=True)
class Timing:
    """What the rounds gave: readings by implementation, and what disturbed them, or ""."""

    timer: str
    readings: Mapping[str, Reading]
    disturbance: str = ""


def make_timer(device: torch.device) -> Timer:
    """Return the timer of the device: kernel time on a GPU, wall time on a CPU."""
    return CuptiTimer() if device.type == "cuda" else WallTimer()


def warm(trial: Trial, device: torch.device, emit: Emit) -> None:
    """Run a few untimed calls and note about how long one takes and how much it holds."""
    emit("start", trial.name, "compile" if trial.name == COMPILE else "warm-up")
    with trial.compiling if trial.name == COMPILE else nullcontext():
        try:
            before = _allocated(device)
            calls = trial.make_calls(WARM_CALLS)
            trial.call_us = min(_elapsed_us(call, device) for call in calls)
            if device.type == "cuda":
                held = torch.cuda.max_memory_allocated(device) - before
                trial.call_bytes = held // WARM_CALLS
        except (Exception, SystemExit) as error:
            trial.fail(Status.ERROR, judge(error, trial.name, "warm-up", device))


def plan(trials: Sequence[Trial], device: torch.device) -> dict[str, Plan]:
    """Return the plan of each trial, from how long its warm calls took."""
    return {trial.name: _plan(trial, device) for trial in trials}


def rounds(
    trials: Sequence[Trial],
    plans: Mapping[str, Plan],
    arena: Arena,
    recheck: Callable[[Trial, Any], None],
    emit: Emit,
) -> Timing:
    """Time the trials in rounds.

    A trial ends here if it overwrites its inputs; `recheck` sees its last output.
    """
    timer = make_timer(arena.device)
    if not any(trial.alive for trial in trials):
        return Timing(timer.name, {})
    scrub = _scrubber(arena)
    gc.collect()
    gc.disable()
    try:
        with timer, OtherLoad() as load:
            for turn in range(ROUNDS):
                first = turn % len(trials)
                for trial in [*trials[first:], *trials[:first]]:
                    if trial.alive:
                        output = _block(trial, plans[trial.name], arena, timer, scrub, emit)
                        if turn == ROUNDS - 1 and trial.alive:
                            recheck(trial, output)
        readings = timer.readings()
    except TimerError as error:
        for trial in trials:
            if trial.alive:
                trial.fail(Status.INVALID, str(error))
        return Timing(timer.name, {})
    finally:
        gc.enable()
    for name, reading in readings.items():
        trial = next(t for t in trials if t.name == name)
        trial.proof |= _proof(plans[name], arena, reading)
    return Timing(timer.name, readings, load.disturbance if arena.device.type == "cpu" else "")


def _plan(trial: Trial, device: torch.device) -> Plan:
    seconds, least, most = LIMITS[device.type]
    room = max(1, int(MEMORY_SHARE * free_bytes(device)) // max(1, trial.call_bytes))
    samples = max(least, min(most, room, int(seconds * 1e6 / ROUNDS / max(trial.call_us, 1e-3))))
    batch = 1
    if device.type == "cpu" and trial.call_us < MIN_BATCH_US:
        batch = int(MIN_BATCH_US / max(trial.call_us, 0.5)) + 1
    return Plan(samples * batch, batch, room)


def _block(
    trial: Trial,
    plan: Plan,
    arena: Arena,
    timer: Timer,
    scrub: Callable[[], None],
    emit: Emit,
) -> Any:
    emit("start", trial.name, "timing")
    with trial.recompiling if trial.name == COMPILE else nullcontext():
        try:
            calls = trial.make_calls(plan.calls)
            scrub()
            output = timer.block(trial.name, calls, plan.batch)
        except (Exception, SystemExit) as error:
            # The timer's window is cut: the group must be timed again without the culprit.
            reason = judge(error, trial.name, "timing", arena.device)
            raise Fatal(trial.name, Status.ERROR, reason) from error
    changed = arena.overwritten()
    if changed:
        trial.fail(Status.INVALID, f"overwrote its input {', '.join(changed)} while timed")
    return output


def _scrubber(arena: Arena) -> Callable[[], None]:
    """Return what reads the cache full of something else; the timer does not see it."""
    if not arena.scrubs:
        return lambda: None
    words = COLD_FACTOR * cache_bytes(arena.device) // 4
    scratch = torch.rand(words, device=arena.device)
    total = torch.empty((), device=arena.device)

    def scrub() -> None:
        torch.sum(scratch, dim=0, out=total)

    return scrub


def _proof(plan: Plan, arena: Arena, reading: Reading) -> dict[str, Any]:
    proof: dict[str, Any] = {
        "rounds": ROUNDS,
        "calls_per_round": plan.calls,
        "batch": plan.batch,
        "sets": arena.sets,
        "rotated_bytes": arena.sets * arena.set_bytes,
        "cold": arena.rotates_cold or (arena.scrubs and plan.calls <= arena.sets),
    }
    if reading.kernels:
        proof["kernels"] = dict(reading.kernels)
        proof["launches"] = sum(reading.kernels.values())
        proof["steady"] = reading.steady
    return proof


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
