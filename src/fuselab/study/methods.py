"""The methods themselves: each times the same functions on the same inputs, in us."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch.utils.benchmark import Timer as TorchTimer

from fuselab.model import Group
from fuselab.precision import LEVELS
from fuselab.statistics import stats
from fuselab.study.record import REFERENCE
from fuselab.timers import Call, TimerError
from fuselab.timers.events import EventsTimer
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.measuring.rounds import race
from fuselab.worker.protocol import synchronize
from fuselab.worker.tensors import inputs as make
from fuseline.core.specs.spec import Case, Cost, Inputs, OpSpec

# Seconds for one number; pytest-benchmark's own default is 1.
SECONDS = 0.1
# pytest-benchmark's: the shortest round, and how many there are at least.
ROUND_S, ROUNDS = 5e-6, 5
CALLS = 20
LEVEL = "quick"

Found = dict[str, float]


class Bench:
    """One case: functions by name, on sets of inputs that are made as they are needed."""

    def __init__(
        self, spec: OpSpec, case: Case, functions: Mapping[str, Callable[..., Any]], device: str
    ) -> None:
        self.device = torch.device(device)
        self._spec, self._case, self._functions = spec, case, functions
        names = tuple(functions)
        self.group = Group(spec.name, case.name, "float32", "fwd", "contiguous", device, names)
        self._sets: list[Inputs] = []
        self._grow(1)

    @property
    def sets(self) -> int:
        """How many sets of inputs there are by now."""
        return len(self._sets)

    @property
    def nbytes(self) -> int:
        return make.nbytes(self._sets[0].values())

    def calls(self, name: str, count: int, sets: int) -> list[Call]:
        """Return calls of a function over so many rotating sets."""
        self._grow(sets)
        function = self._functions[name]
        return [_call(function, self._sets[i % sets]) for i in range(count)]

    def each(self, measure: Callable[[Call], float]) -> Found:
        """Return what a method says of a call of each function on one set."""
        return {name: measure(self.calls(name, 1, 1)[0]) for name in self._functions}

    def raced(self, timer: str = "") -> Found:
        """Return what the lab's rounds say by one of its timers, all functions interleaved."""
        cost = Cost(self.nbytes, 0)
        trials = [Trial(cell, partial(self.calls, cell.impl), cost) for cell in self.group.cells]
        timed = race(trials, self.device, self.nbytes, LEVELS[LEVEL], _silent, timer)
        for trial in trials:
            if not trial.alive:
                raise TimerError(trial.reason)
        return {name: stats.median(r.samples_us) for name, r in timed.readings.items()}

    def _grow(self, count: int) -> None:
        while len(self._sets) < count:
            generator = make.generator(self.group.key, len(self._sets), self.device)
            self._sets.append(self._spec.inputs(self._case, torch.float32, self.device, generator))


def _call(function: Callable[..., Any], given: Inputs) -> Call:
    return lambda: function(**given)


def _silent(*_: object) -> None:
    """Stand for what a worker tells its runner."""


def _by_pytest(call: Call) -> float:
    """Return the median as pytest-benchmark has it: calibrated loops, then rounds of them.

    Its procedure and its clock, `time.perf_counter`; the library is no dependency of the lab.
    """
    loops = 1
    while (duration := _loop_s(call, loops)) < ROUND_S:
        loops = math.ceil(ROUND_S * loops / duration) if duration >= ROUND_S / 2 else 10 * loops
        if loops == 1:
            break
    rounds = max(ROUNDS, math.ceil(SECONDS / duration))
    return stats.median([_loop_s(call, loops) for _ in range(rounds)]) / loops * 1e6


def _loop_s(call: Call, loops: int) -> float:
    start = perf_counter()
    for _ in range(loops):
        call()
    return perf_counter() - start


def _waiting(call: Call, empty_cache: bool) -> Call:
    """Return the call as the study wrapped it."""

    def wrapped() -> None:
        torch.cuda.synchronize()
        call()
        torch.cuda.synchronize()
        if empty_cache:
            torch.cuda.empty_cache()

    return wrapped


def _by_loop(call: Call, device: torch.device) -> float:
    """Return the time of a plain loop over its number of calls; it ends when the device does."""

    def timed(count: int) -> float:
        synchronize(device)
        start = perf_counter()
        for _ in range(count):
            call()
        synchronize(device)
        return perf_counter() - start

    timed(1)
    count = max(1, int(SECONDS / timed(1)))
    return timed(count) / count * 1e6


def _by_torch(call: Call) -> float:
    timer = TorchTimer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=SECONDS).median) * 1e6


class _PlainEvents(EventsTimer):
    """As a user's own: the device does not wait while the host queues the calls."""

    HEAD_START = 0


def _by_events(call: Call) -> float:
    with _PlainEvents() as timer:
        timer.block("", [call] * CALLS)
    return stats.median(timer.readings()[""].samples_us)


def _by_do_bench(call: Call) -> float:
    """Return what Triton's own benchmark says; it comes with torch for GPUs."""
    do_bench = importlib.import_module("triton.testing").do_bench
    return float(do_bench(call, return_mode="median")) * 1e3


MEASURES: Mapping[str, Callable[[Bench], Found]] = {
    REFERENCE: lambda bench: bench.raced(),
    "pytest-benchmark, synchronize, empty_cache": lambda bench: bench.each(
        lambda call: _by_pytest(_waiting(call, empty_cache=True))
    ),
    "pytest-benchmark, synchronize": lambda bench: bench.each(
        lambda call: _by_pytest(_waiting(call, empty_cache=False))
    ),
    "pytest-benchmark": lambda bench: bench.each(_by_pytest),
    "loop": lambda bench: bench.each(lambda call: _by_loop(call, bench.device)),
    "torch.utils.benchmark": lambda bench: bench.each(_by_torch),
    "events": lambda bench: bench.each(_by_events),
    "do_bench": lambda bench: bench.each(_by_do_bench),
    "graph": lambda bench: bench.raced("graph"),
}
