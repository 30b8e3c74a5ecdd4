"""Correctness before speed: every implementation against fp64, with eager's error as yardstick."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from fuselab import rivals
from fuselab.model import Accuracy, Status
from fuselab.worker.checks.guard import GUARD
from fuselab.worker.implementations import baselines
from fuselab.worker.implementations.baselines import COMPILE, Unsupported
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.protocol import Emit, Fatal, judge, synchronize
from fuselab.worker.tensors.problem import InputSet, Problem
from fuseline.core import native
from fuseline.core.specs.spec import Budget, Cost
from fuseline.testing import settings
from fuseline.testing.oracle import accuracy
from fuseline.testing.oracle.judge import Figures, Judge

# A baseline that adds up more roughly than ours may is still timed, with its error beside it; one
# that is plainly wrong is not.
LENIENCY = 16.0


def yardstick(problem: Problem, emit: Emit) -> Figures | None:
    """Return the errors of the eager implementation, or None where it cannot run."""
    eager = problem.spec.eager
    if eager is None or eager.unavailable(problem.device.type):
        return None
    emit("start", eager.name, _phase(problem, eager.name))
    try:
        results = _call(problem, eager.fn)
    except Exception as error:
        judge(error, eager.name, _phase(problem, eager.name), problem.device)
        return None
    finally:
        problem.overwritten()
    try:
        problem.eager_dtypes = {name: result.dtype for name, result in results.items()}
        return _errors(problem, results)
    except Exception:
        return None  # eager's own cell says why


def admit(problem: Problem, name: str, cost: Cost, eager: Figures | None, emit: Emit) -> Trial:
    """Return the trial of an implementation, ended already where it may not be timed."""
    around = baselines.around(name)
    trial = Trial(problem.group.cell(name), lambda count, sets: [], cost, around=around)
    phase = _phase(problem, name)
    emit("start", name, phase)
    before = settings.snapshot(problem.device)
    try:
        fn = baselines.make(problem.spec, name, problem.device.type)
        baselines.refuse(problem.spec, name, problem.first.inputs, problem.direction)
        trial.fn, trial.make_calls = fn, lambda count, sets: problem.calls(fn, count, sets)
        versions = problem.versions
        with trial.around, trial.compiling if name == COMPILE else nullcontext():
            results = _call(problem, fn)
    except Unsupported as error:
        trial.fail(Status.UNSUPPORTED, str(error))
        return trial
    except (Exception, SystemExit) as error:
        # What a rival raises at its first call is how it says what it cannot do.
        rival = baselines.role(problem.spec, name) == rivals.ROLE
        status = Status.UNSUPPORTED if rival else Status.ERROR
        trial.fail(status, judge(error, name, phase, problem.device))
        problem.overwritten()
        require_settings(trial, before, problem.device, f"{trial.reason}; ")
        return trial
    changed = problem.overwritten()
    if changed:
        trial.fail(Status.INVALID, f"overwrote its input {', '.join(changed)}")
        return trial
    borrowed = [name for name, was in versions.items() if problem.versions[name] != was]
    if borrowed:
        names = ", ".join(borrowed)
        trial.fail(Status.INVALID, f"wrote to its input {names} and put it back")
        return trial
    replaced = GUARD.replaced()
    if replaced:
        raise Fatal(name, Status.INVALID, f"replaced {replaced}")
    require_settings(trial, before, problem.device)
    emit("start", name, "check")
    try:
        _accept(problem, trial, results, eager)
    except Exception as error:
        trial.fail(Status.ERROR, judge(error, name, "check", problem.device))
    return trial


def require_settings(
    trial: Trial, before: settings.Settings, device: torch.device, error: str = ""
) -> None:
    """Raise Fatal if the process is not set as before: those who come after would be timed so."""
    altered = settings.changes(before, settings.snapshot(device))
    if altered and trial.name not in baselines.BASELINES:
        status = Status.ERROR if error else Status.INVALID
        raise Fatal(trial.name, status, f"{error}changed the settings of the process: {altered}")


def _accept(
    problem: Problem, trial: Trial, results: dict[str, Tensor], eager: Figures | None
) -> None:
    """Note the errors of the results; end the trial if they are of another kind or too large."""
    if reason := problem.misshapen(results):
        trial.fail(Status.INCORRECT, reason)
        return
    figures = _errors(problem, results)
    trial.accuracy = _summary(figures, eager)
    mine = judge_of(problem, trial.name, problem.first)
    why = mine.first_reason(results, figures, eager)
    if why and problem.dtype == torch.float64:
        why = mine.wrong(results)  # eager's error against what long double then says, too
    if why:
        trial.fail(Status.INCORRECT, why)


def judge_of(problem: Problem, impl: str, given: InputSet) -> Judge:
    """Return the judge of what an implementation makes of these inputs, by its role's budget."""
    role = baselines.role(problem.spec, impl)
    budget = problem.spec.budget.held_by(role)
    if role not in ("ours", "eager"):
        budget = Budget(*(LENIENCY * limit for limit in astuple(budget)))
    return Judge(problem.spec, given.inputs, problem.direction, given.dys, budget=budget)


def _call(problem: Problem, fn: Callable[..., Any]) -> dict[str, Tensor]:
    """Call once on the first set, with memory full of NaN where outputs will be allocated."""
    first = problem.first
    _poison(problem)
    native.debug_fill(True)
    try:
        results = accuracy.run(fn, problem.spec, first.inputs, problem.direction, first.dys)
        synchronize(problem.device)
    finally:
        native.debug_fill(False)
    return results


def _poison(problem: Problem) -> None:
    floating = [t for t in problem.first.tensors.values() if t.is_floating_point()]
    blocks = [torch.full_like(t, math.nan) for t in floating]
    del blocks


def _errors(problem: Problem, results: Mapping[str, Tensor]) -> dict[str, accuracy.ErrorFigures]:
    first = problem.first
    return accuracy.errors(problem.spec, first.inputs, problem.direction, results, first.dys)


def _summary(figures: Figures, eager: Figures | None) -> Accuracy:
    max_abs = max((f.max_abs for f in figures.values()), default=0.0)
    theirs = 0.0 if eager is None else max((f.max_abs for f in eager.values()), default=0.0)
    return Accuracy(
        max_abs=max_abs,
        rms=max((f.rms for f in figures.values()), default=0.0),
        max_ulp=max((f.max_ulp for f in figures.values()), default=0.0),
        eager_ratio=max_abs / theirs if theirs > 0 else None,
        max_eps=max((f.scaled for f in figures.values()), default=0.0),
    )


def _phase(problem: Problem, name: str) -> str:
    if name == COMPILE:
        return "compile"
    return "forward" if problem.direction == "fwd" else "backward"
