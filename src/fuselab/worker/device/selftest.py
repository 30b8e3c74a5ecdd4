"""The lab's test of itself on a device: work of known length, the same work twice."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression, median
from time import perf_counter_ns
from typing import Any

import torch

from fuselab.machine.load import OtherLoad
from fuselab.model import Group
from fuselab.planning.plan import CEILING, HOST, TIMERS
from fuselab.precision import LEVELS, STANDARD
from fuselab.statistics import comparison
from fuselab.statistics.comparison import Pair
from fuselab.timers import Call, TimerError
from fuselab.worker.device import roofs
from fuselab.worker.device.ceiling import Streams
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.measuring.rounds import race
from fuselab.worker.measuring.timing import make_timer
from fuselab.worker.protocol import Emit, describe
from fuseline.core import native

LENGTHS_US = (20, 50, 100, 200, 500, 1000)
CALLS, ROUNDS = 10, 3
AGAIN_BYTES = {"cuda": 256 << 20, "cpu": 8 << 20}

Facts = dict[str, Any]


def run(device: torch.device, emit: Emit) -> Facts:
    """Return what the lab's numbers are worth here, and the roofs that it measured.

    Roofs that others disturbed are none: `disturbed` says what they did.
    """
    with OtherLoad(torch.get_num_threads() if device.type == "cpu" else 1) as load:
        found = _tested(device, emit)
    return found | {"load": load.disturbance}


def _tested(device: torch.device, emit: Emit) -> Facts:
    why = native.status().why_not("cuda") if device.type == "cuda" else None
    found: Facts = {"timers": {}, "no_kernels": why or ""}
    for name in TIMERS[device.type]:
        emit("start", "", f"the test of the timer {name}")
        if not why and name != HOST:
            found["timers"][name] = _guarded(line, device, name)
    emit("start", "", "the same work twice")
    found["again"] = _guarded(_again, device, emit)
    if device.type == "cuda" and not why:
        found["launch"] = _guarded(_launch, device)
    try:
        found["roofs"] = roofs.measure(device, emit)
    except roofs.Disturbed as error:
        found["disturbed"] = str(error)
    return found


def _guarded(test: Any, *arguments: Any) -> Facts:
    """Return what a test finds, or why it could not."""
    try:
        return dict(test(*arguments))
    except (TimerError, RuntimeError) as error:
        return {"error": describe(error)}


def line(device: torch.device, name: str) -> Facts:
    """Return slope and offset (us) of the line through what a timer reads of known lengths."""
    read = _read(device, name, LENGTHS_US)
    slope, offset = linear_regression(LENGTHS_US, read)
    return {"slope": slope, "offset_us": offset, "lengths_us": LENGTHS_US, "read_us": read}


def _launch(device: torch.device) -> Facts:
    """Return what the shortest kernel takes by each timer, the host included, in us."""
    return {f"{name}_us": _read(device, name, (0,))[0] for name in TIMERS[device.type]}


def _read(device: torch.device, name: str, lengths_us: Sequence[float]) -> list[float]:
    timer = make_timer(device, name)
    try:
        with timer:
            for _ in range(ROUNDS):
                for us in lengths_us:
                    with timer.preparing():
                        calls = [_spin(device, us)] * CALLS
                    timer.block(str(us), calls)
    finally:
        timer.release()
    readings = timer.readings()
    return [median(readings[str(us)].samples_us) for us in lengths_us]


def _spin(device: torch.device, us: float) -> Call:
    """Return a call that keeps the device busy for so long, by the device's own clock."""
    if device.type == "cuda":
        out = torch.empty(1, dtype=torch.int64, device=device)
        return lambda: torch.ops.fuselab.spin(out, int(us * 1e3))

    def busy() -> None:
        end = perf_counter_ns() + us * 1e3
        while perf_counter_ns() < end:
            pass

    return busy


def _again(device: torch.device, emit: Emit) -> Facts:
    """Return the lab's verdict on a copy beside the same copy: anything but `same` is wrong."""
    nbytes = AGAIN_BYTES[device.type]
    group = Group(CEILING, "again", "float32", "fwd", "contiguous", str(device), ("a", "b"))
    streams = Streams("1R1W", nbytes, device)
    trials = [Trial(cell, streams.calls, streams.cost) for cell in group.cells]
    timed = race(trials, device, nbytes, LEVELS[STANDARD], emit)
    a, b = (
        t.measurement(timed.timer, timed.readings[t.name], (), timed.disturbance[t.name])
        for t in trials
    )
    (found,) = comparison.compare([Pair((a.cell, b.cell), a, b)])
    return {"verdict": str(found.verdict), "reason": found.reason, "ratio": found.ratio}
