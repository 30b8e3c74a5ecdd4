"""`--isolate`: each implementation in a process of its own, timed and checked from outside.

The worker owns inputs and results, in memory that both see. It asks for a batch of calls, takes the
time until the answer, subtracts what an empty implementation takes for the same, and checks results
that are there when the clock stops.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from statistics import median
from time import monotonic
from typing import Any

from torch import Tensor

from fuselab.machine.load import OtherLoad
from fuselab.model import ISOLATED, Measurement, Status
from fuselab.planning.plan import CEILING
from fuselab.precision import LEVELS, Level
from fuselab.statistics import stats
from fuselab.timers import Reading
from fuselab.worker.checks.audit import SHARE, Audit
from fuselab.worker.implementations import baselines
from fuselab.worker.implementations.baselines import COMPILE
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.isolation.host import Guest, Refused, Rooms
from fuselab.worker.protocol import Emit
from fuselab.worker.tensors.problem import InputSet, Problem, rotation

CALLS = 20
WARM = 3
# A batch must take so much longer than the empty one for their difference to mean anything.
LEAST_US = 5.0
_RANDOM = random.SystemRandom()


class _Audit(Audit):
    """The audit whose yardstick, eager, runs in a process of its own, too."""

    WRONG = "wrong in a timed call"  # no call before these was checked

    def __init__(self, problem: Problem, eager: Guest | None) -> None:
        super().__init__(problem, eager is not None)
        self._guest = eager

    def _run(self, fn: Any, given: InputSet) -> dict[str, Tensor]:
        assert self._guest
        self._guest.batch([given])
        return self._problem.named(self._guest.results(0))


def compete(problem: Problem, skip: frozenset[str], emit: Emit) -> list[Measurement]:
    """Measure the implementations of a group, each in a process of its own."""
    level = LEVELS[problem.group.precision]
    cost = problem.cost
    problem.grow(rotation(problem, CALLS))
    rooms = Rooms(problem)
    trials = [
        Trial(problem.group.cell(name), lambda count, sets: [], cost)
        for name in problem.group.impls
    ]
    guests: dict[str, Guest] = {}
    try:
        with OtherLoad() as load:
            _admit(problem, rooms, trials, guests, skip, emit)
            samples = _rounds(problem, rooms, trials, guests, level, emit)
    finally:
        for guest_ in guests.values():
            guest_.close()
    return [
        trial.measurement(
            ISOLATED,
            Reading(tuple(samples[trial.name]), {}) if samples.get(trial.name) else None,
            (),
            load.disturbance if problem.device.type == "cpu" else "",
        )
        for trial in trials
    ]


def _admit(
    problem: Problem,
    rooms: Rooms,
    trials: Sequence[Trial],
    guests: dict[str, Guest],
    skip: frozenset[str],
    emit: Emit,
) -> None:
    """Start the processes and let each make a few calls that nobody times."""
    eager = problem.spec.eager
    for name in dict.fromkeys(("", *([eager.name] if eager else []), *problem.group.impls)):
        trial = next((t for t in trials if t.name == name), None)
        if name == CEILING and trial:
            trial.fail(Status.UNSUPPORTED, "the lab's own copies have no process of their own")
            continue
        if name in skip:
            continue
        emit("start", name, "compile")
        try:
            guests[name] = Guest(problem, rooms, name)
            for _ in range(WARM):
                guests[name].batch(problem.sets)
            if trial:
                trial.compiling.graphs, trial.compiling.breaks = guests[name].compiled
        except Refused as refused:
            if name in guests:
                guests.pop(name).close()
            if not name:
                raise
            if trial:
                trial.fail(refused.status, f"{refused.reason} (isolated)")
        if trial:
            trial.proof = baselines.identity(
                trial.proof, problem.spec, name, problem.origin.inputs, problem.direction
            )


def _rounds(
    problem: Problem,
    rooms: Rooms,
    trials: Sequence[Trial],
    guests: Mapping[str, Guest],
    level: Level,
    emit: Emit,
) -> dict[str, list[float]]:
    """Return the us of one call in each batch, by implementation."""
    eager = problem.spec.eager
    audit = _Audit(problem, guests.get(eager.name) if eager else None)
    samples: dict[str, list[float]] = {trial.name: [] for trial in trials}
    begin, turn = monotonic(), 0
    while alive := [t for t in trials if t.alive and t.name in guests]:
        problem.refresh()
        empty = median(_batch(problem, guests[""]) for _ in range(WARM))
        for trial in _RANDOM.sample(alive, len(alive)):
            emit("start", trial.name, "timing")
            try:
                taken = _batch(problem, guests[trial.name]) - empty
            except Refused as refused:
                trial.fail(refused.status, f"{refused.reason} (isolated)")
                continue
            _verify(problem, rooms, trial, guests[trial.name], audit)
            if trial.alive and taken < LEAST_US:
                trial.fail(
                    Status.INVALID,
                    f"{len(problem.sets)} calls took {taken:.1f} us more than none (isolated)",
                )
            samples[trial.name].append(taken / len(problem.sets))
        turn += 1
        spent = (monotonic() - begin) / len(alive)
        if turn >= max(level.rounds, level.samples) and (
            spent > level.cap_s or not any(_missed(t, level, samples) for t in alive)
        ):
            break
    for trial in trials:
        _judge_compile(trial, guests.get(trial.name))
        if trial.alive:
            missed = _missed(trial, level, samples)
            trial.reason = "; ".join(filter(None, (ISOLATED, missed)))
    return samples


def _batch(problem: Problem, guest: Guest) -> float:
    problem.renew(0, shuffle=True)
    return guest.batch(_ordered(problem))


def _ordered(problem: Problem) -> list[InputSet]:
    """Return the set of each call of a batch."""
    count = len(problem.sets)
    return [problem.sets[i] for i in problem.order(count, count)]


def _verify(problem: Problem, rooms: Rooms, trial: Trial, guest: Guest, audit: Audit) -> None:
    """Check some of the results of the last batch, on the contents that the worker gave."""
    count = len(problem.sets)
    kept = {i: guest.results(i) for i in _RANDOM.sample(range(count), max(1, round(SHARE * count)))}
    changed = rooms.changed(_ordered(problem))
    if changed:
        trial.fail(Status.INVALID, f"overwrote its input {', '.join(changed)} while timed")
    audit.verify(trial, count, count, kept)


def _judge_compile(trial: Trial, guest: Guest | None) -> None:
    """End the trial of `compile` if its process compiled nothing, in parts, or while timed."""
    if trial.name != COMPILE or guest is None:
        return
    first, timed = trial.compiling, trial.recompiling
    graphs, breaks = guest.compiled
    timed.graphs, timed.breaks = graphs - first.graphs, breaks - first.breaks
    trial.proof = baselines.compile_proof(trial.proof, first, timed)
    fault = baselines.compile_fault(trial.proof)
    if trial.alive and fault:
        trial.fail(Status.INVALID, fault)


def _missed(trial: Trial, level: Level, samples: Mapping[str, list[float]]) -> str:
    found = samples[trial.name]
    if not found:
        return ""
    return level.missed(len(found), sum(found), stats.summary(found).known_to(0.0))
