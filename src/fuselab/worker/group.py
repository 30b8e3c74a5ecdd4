"""One group from inputs to measurements: check, probe, time in rounds, weigh."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuselab.model import ISOLATED, Cell, Group, Measurement, Proof, Status
from fuselab.planning.plan import CEILING
from fuselab.precision import LEVELS
from fuselab.worker import footprint, protocol
from fuselab.worker.checks import audit, check, probe
from fuselab.worker.checks.audit import Audit
from fuselab.worker.checks.guard import GUARD
from fuselab.worker.device import ceiling
from fuselab.worker.device.ceiling import Streams, mix_of, peak_bytes
from fuselab.worker.implementations import baselines
from fuselab.worker.implementations import trial as _trial
from fuselab.worker.implementations.baselines import COMPILE
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.isolation import isolated
from fuselab.worker.measuring import limits, timing
from fuselab.worker.measuring.rounds import Rounds, race
from fuselab.worker.measuring.timing import Arena, Timing
from fuselab.worker.protocol import Emit, Fatal, collector_off, judge
from fuselab.worker.tensors import contents, inputs, problem
from fuselab.worker.tensors.problem import Problem, build, rotation
from fuseline.core.specs.spec import Cost, OpSpec

GUARD.watch(audit, check, contents, inputs, probe, problem, protocol, timing, _trial)


def run(group: Group, skip: frozenset[str], emit: Emit, spec: OpSpec | None = None) -> None:
    """Measure a group and emit one result per implementation; `skip` names those not to touch.

    `spec` stands for the group's source. Raises Fatal where the process must not go on.
    """
    device = torch.device(group.device)
    phase = "building the inputs"
    try:
        if group.op == CEILING:
            measured = _ceilings(group, device, emit)
        else:
            problem = build(group, emit, spec)
            phase = "the run of the group"
            with collector_off(), torch.set_grad_enabled(problem.direction == "bwd"):
                compete = isolated.compete if group.timer == ISOLATED else _compete
                measured = compete(problem, skip, emit)
    except Fatal:
        raise
    except Exception as error:
        reason = judge(error, "", phase, device)
        measured = [Measurement(cell, Status.ERROR, reason) for cell in group.cells]
    for measurement in measured:
        emit("result", group.whole(measurement))


def _compete(problem: Problem, skip: frozenset[str], emit: Emit) -> list[Measurement]:
    cost = problem.cost
    eager = problem.spec.eager
    figures = None
    if eager is not None and eager.name not in skip:
        figures = check.yardstick(problem, emit)
    trials = []
    for name in problem.group.impls:
        if name == CEILING:
            trials.append(_ceiling_trial(problem, cost))
        else:
            trials.append(check.admit(problem, name, cost, figures, emit))
            trials[-1].proof = baselines.identity(
                trials[-1].proof, problem.spec, name, problem.origin.inputs, problem.direction
            )
    alive = [trial for trial in trials if trial.alive]
    for trial in alive:
        timing.warm(trial, problem.device, emit)
        if trial.alive and trial.fn is not None:
            probe.question(trial, problem, emit)

    level = LEVELS[problem.group.precision]
    plans = timing.plan([trial for trial in alive if trial.alive], problem.device, level)
    problem.grow(rotation(problem, max((p.calls for p in plans.values()), default=1)))
    arena = Arena(
        problem.device,
        len(problem.sets),
        problem.first.nbytes,
        problem.refresh,
        problem.renew,
        problem.renew_gradients,
        problem.written,
    )
    rounds = Rounds(alive, plans, arena, emit)
    timed = rounds.run(level, problem.group.timer, Audit(problem, figures is not None))
    peak = limits.peak_bandwidth(problem.device)
    for trial in alive:
        needed = trial.cost.bytes if trial.fn is None else problem.least_bytes
        limits.refuse_impossible(trial, needed, timed, arena, peak)
        if trial.alive:
            _weigh(problem, trial, plans[trial.name].room, emit)
        if trial.name == COMPILE:
            _judge_compile(trial)
    return _records(trials, timed)


def _records(trials: Sequence[Trial], timed: Timing) -> list[Measurement]:
    return [
        trial.measurement(
            timed.timer,
            timed.readings.get(trial.name),
            timed.hot_us.get(trial.name, ()),
            timed.disturbance.get(trial.name, ""),
        )
        for trial in trials
    ]


def _ceiling_trial(problem: Problem, cost: Cost) -> Trial:
    """Return the trial that moves the same bytes as the case, in the nearest mix of streams."""
    mix = mix_of(cost)
    own = ceiling.better(mix, cost.bytes, problem.device)
    streams = Streams(mix, cost.bytes, problem.device, own=own)
    return _streaming(problem.group.cell(CEILING), streams)


def _streaming(cell: Cell, streams: Streams) -> Trial:
    proof = Proof(role=CEILING, mix=streams.mix)
    return Trial(cell, streams.calls, streams.cost, buffer_bytes=streams.cost.bytes, proof=proof)


def _weigh(problem: Problem, trial: Trial, room: int, emit: Emit) -> None:
    emit("start", trial.name, "counting")
    try:
        with trial.around:
            footprint.weigh(trial, problem.device, room)
            if trial.fn is not None:
                # What a call allocates and still holds at its peak: its results, its workspace.
                given = footprint.given_bytes(problem, trial.fn)
                trial.buffer_bytes = given + (trial.peak_bytes or 0)
    except Exception as error:
        trial.fail(Status.ERROR, judge(error, trial.name, "counting", problem.device))


def _judge_compile(trial: Trial) -> None:
    trial.proof = baselines.compile_proof(trial.proof, trial.compiling, trial.recompiling)
    fault = baselines.compile_fault(trial.proof)
    if trial.alive and fault:
        trial.fail(Status.INVALID, fault)


def _ceilings(group: Group, device: torch.device, emit: Emit) -> list[Measurement]:
    """Measure the fixed recipe: one copy and one add of 4 GiB, or of what fits."""
    nbytes, reason = peak_bytes(device)
    trials = []
    memory: list[torch.Tensor] = []
    for cell in group.cells:
        emit("start", cell.impl, "inputs")
        streams = Streams("2R1W" if cell.impl == "add" else "1R1W", nbytes, device, memory)
        trial = _streaming(cell, streams)
        trial.reason = reason
        trials.append(trial)
    timed = race(trials, device, nbytes, LEVELS[group.precision], emit, group.timer)
    return _records(trials, timed)
