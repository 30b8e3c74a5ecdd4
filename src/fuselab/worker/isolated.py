"""`--isolate`: each implementation in a process of its own, timed and checked from outside.

The worker owns inputs and results, in memory that both see. It asks for a batch of calls, takes the
time until the answer, subtracts what an empty implementation takes for the same, and checks results
that are there when the clock stops.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from statistics import median
from time import monotonic, perf_counter
from typing import Any

import torch
from torch import Tensor, multiprocessing

from fuselab import stats
from fuselab.load import OtherLoad
from fuselab.model import Measurement, Status
from fuselab.plan import CEILING, ISOLATED
from fuselab.precision import LEVELS, Level
from fuselab.timers import Reading
from fuselab.worker import baselines, guest
from fuselab.worker.audit import SHARE, Audit
from fuselab.worker.problem import InputSet, Problem, rotation
from fuselab.worker.protocol import Emit, synchronize
from fuselab.worker.trial import Trial
from fuseline.testing import accuracy

CALLS = 20
WARM = 3
# A batch must take so much longer than the empty one for their difference to mean anything.
LEAST_US = 5.0
POISON = 0xFF
ENDING_S = 5
_RANDOM = random.SystemRandom()


class Refused(Exception):
    """The guest could not do it; the status and the text say why."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Guest:
    """The process of an implementation ("": of the empty one), on the worker's side."""

    def __init__(self, problem: Problem, impl: str) -> None:
        self._problem = problem
        kinds = problem.expected.values()
        self.results = [
            tuple(
                _shared(torch.empty(shape, dtype=dtype, device=problem.device))
                for shape, dtype in kinds
            )
            for _ in problem.sets
        ]
        context = multiprocessing.get_context("spawn")
        self._pipe: Connection
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=guest.main, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        group = problem.group
        self._pipe.send(
            guest.Desk(
                *(group.source, group.op, impl, str(problem.device)),
                inputs=[given.inputs for given in problem.sets],
                dys=[given.dys for given in problem.sets],
                results=self.results,
            )
        )
        self._answer()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        # One that ends by itself gives a GPU's shared memory back.
        self._process.join(ENDING_S)
        if self._process.is_alive():
            self._process.kill()

    def batch(self, order: Sequence[int]) -> float:
        """Return the us from the request for these calls to the answer."""
        problem = self._problem
        synchronize(problem.device)
        self.ask("prepare", list(order))
        _new_gradients(problem, order)
        for tensor in (t for slot in self.results for t in slot):
            tensor.view(-1).view(torch.uint8).fill_(POISON)
        synchronize(problem.device)
        begin = perf_counter()
        self.ask("go")
        return (perf_counter() - begin) * 1e6

    def ask(self, *request: Any) -> None:
        """Send a request and wait for the answer; Refused if it is an error, or none."""
        self._pipe.send(request)
        self._answer()

    def _answer(self) -> None:
        try:
            kind, *rest = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(1)
            reason = f"its process ended with code {self._process.exitcode}"
            raise Refused(Status.CRASHED, reason) from None
        if kind == "error":
            unsupported, text = rest
            raise Refused(Status.UNSUPPORTED if unsupported else Status.ERROR, text)


class _Audit(Audit):
    """The audit whose yardstick, eager, runs in a process of its own, too."""

    def __init__(self, problem: Problem, eager: Guest | None) -> None:
        super().__init__(problem, eager is not None)
        self._guest = eager

    def _run(self, fn: Any, given: InputSet) -> dict[str, Tensor]:
        assert self._guest
        index = next(i for i, held in enumerate(self._problem.sets) if held is given)
        self._guest.ask("prepare", [index])
        self._guest.ask("go")
        return self._problem.named(tuple(t.clone() for t in self._guest.results[0]))


def compete(problem: Problem, skip: frozenset[str], emit: Emit) -> list[Measurement]:
    """Measure the implementations of a group, each in a process of its own."""
    level = LEVELS[problem.group.precision]
    cost = problem.cost
    problem.grow(rotation(problem, CALLS))
    for tensor in (t for given in problem.sets for t in given.tensors.values()):
        _shared(tensor)
    trials = [
        Trial(problem.group.cell(name), lambda count, sets: [], cost)
        for name in problem.group.impls
    ]
    guests: dict[str, Guest] = {}
    try:
        with OtherLoad() as load:
            _admit(problem, trials, guests, skip, emit)
            samples = _rounds(problem, trials, guests, level, emit)
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
            guests[name] = Guest(problem, name)
            for _ in range(WARM):
                guests[name].batch(range(len(problem.sets)))
        except Refused as refused:
            if name in guests:
                guests.pop(name).close()
            if not name:
                raise
            if trial:
                trial.fail(refused.status, f"{refused.reason} (isolated)")
        if trial:
            trial.proof |= baselines.identity(problem.spec, name) | {"isolated": True}


def _rounds(
    problem: Problem,
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
            _verify(problem, trial, guests[trial.name], audit)
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
        if trial.alive:
            missed = _missed(trial, level, samples)
            trial.reason = "; ".join(filter(None, (ISOLATED, missed)))
    return samples


def _batch(problem: Problem, guest_: Guest) -> float:
    problem.renew(len(problem.sets), shuffle=True)
    return guest_.batch(problem.order(len(problem.sets), len(problem.sets)))


def _verify(problem: Problem, trial: Trial, guest_: Guest, audit: Audit) -> None:
    """Check some of the results of the last batch as they are now."""
    count = len(problem.sets)
    wanted = _RANDOM.sample(range(count), max(1, round(SHARE * count)))
    kept = {i: tuple(t.clone() for t in guest_.results[i]) for i in wanted}
    changed = [name for name in problem.written() if name in problem.origin.inputs]
    if changed:
        trial.fail(Status.INVALID, f"overwrote its input {', '.join(changed)} while timed")
    audit.verify(trial, count, count, kept)


def _missed(trial: Trial, level: Level, samples: Mapping[str, list[float]]) -> str:
    found = samples[trial.name]
    if not found:
        return ""
    return level.missed(len(found), sum(found), stats.summary(found).known_to(0.0))


def _new_gradients(problem: Problem, order: Sequence[int]) -> None:
    """Draw output gradients: a backward's forward has run by now and must not know them."""
    generator = torch.Generator(problem.device).manual_seed(secrets.randbits(62))
    for i in order:
        held = problem.sets[i].dys or ()
        for dy, new in zip(held, accuracy.make_dys(held, generator), strict=True):
            dy.data.copy_(new)


def _shared(tensor: Tensor) -> Tensor:
    """Return the tensor in memory that other processes can see; a GPU's always is."""
    return tensor.share_memory_() if tensor.device.type == "cpu" else tensor
