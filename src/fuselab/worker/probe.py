"""Two questions to an implementation beside the timing: done when it returned? computed anew?"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep

import torch
from torch import Tensor

from fuselab.model import Status
from fuselab.timers import Call
from fuselab.worker.problem import Problem
from fuselab.worker.protocol import Emit, describe, judge, synchronize
from fuselab.worker.trial import Trial
from fuseline.testing.poison import poison

# Looks at a result right after the call and once more after this.
SETTLE_S = 0.02
LOOKS = 2
PAIRS = 3
# A busy machine may stretch either side; who remembers does so each time.
ATTEMPTS = 4
# Less than this share of the time on contents seen before, and so much less of it at least.
RECALL_SHARE = 0.5
RECALL_US = 10.0


class _Malformed(Exception):
    """A call gave something else than results; the text says what."""


def question(trial: Trial, problem: Problem, emit: Emit) -> None:
    """End the trial if its results come late or from memory."""
    emit("start", trial.name, "probe")
    try:
        reason = _late(trial, problem) or _recalled(trial, problem)
    except _Malformed as malformed:
        trial.fail(Status.INCORRECT, f"right at first, wrong in a later call: {malformed}")
        return
    except (Exception, SystemExit) as error:
        trial.fail(Status.ERROR, judge(error, trial.name, "probe", problem.device))
        return
    finally:
        problem.refresh(0)
    if reason:
        trial.fail(Status.INVALID, reason)


def _late(trial: Trial, problem: Problem) -> str:
    """Say that a result still changed after its call had returned, or ""."""
    for _ in range(LOOKS):
        (call,) = trial.make_calls(1, 1)
        # What lies in the memory that the results will get is no result of an earlier call.
        poison(trial.checked.values())
        synchronize(problem.device)
        results = _results(problem, call())
        early = [result.clone() for result in results]
        sleep(SETTLE_S)
        synchronize(problem.device)
        if not all(_same(a, b) for a, b in zip(early, results, strict=True)):
            return "its result still changed after the call had returned"
    return ""


def _results(problem: Problem, output: object) -> list[Tensor]:
    """Return the results of a call; _Malformed if they are not what they should be."""
    try:
        named = problem.named(output)
        reason = problem.misshapen(named)
    except Exception as error:
        raise _Malformed(describe(error)) from error
    if reason:
        raise _Malformed(reason)
    return list(named.values())


def _recalled(trial: Trial, problem: Problem) -> str:
    """Say that contents seen before take much less time than new ones in the same place, or ""."""
    reason = ""
    for _ in range(ATTEMPTS):
        new, again = _pair_us(trial, problem)
        if again > RECALL_SHARE * new or new - again < RECALL_US:
            reason = ""
            break
        reason = f"it takes {again:.0f} us on contents it has seen before, {new:.0f} us on new ones"
    return reason


def _pair_us(trial: Trial, problem: Problem) -> tuple[float, float]:
    """Return the least time on new contents, and on the same ones a second time."""
    other_us: list[float] = []
    new_us: list[float] = []
    again_us: list[float] = []
    for _ in range(PAIRS):
        contents = problem.draw()
        # What comes before a timed call is alike for both: a call and a copy.
        for source, found in (
            (problem.origin, other_us),
            (contents, new_us),
            (contents, again_us),
        ):
            problem.place(source)
            found.append(_elapsed_us(trial.make_calls, problem))
    return min(new_us), min(again_us)


def _elapsed_us(make_calls: Callable[[int, int], list[Call]], problem: Problem) -> float:
    (call,) = make_calls(1, 1)
    synchronize(problem.device)
    begin = perf_counter()
    kept = call()
    synchronize(problem.device)
    taken = (perf_counter() - begin) * 1e6
    del kept
    return taken


def _same(a: Tensor, b: Tensor) -> bool:
    if a.is_floating_point() and a.element_size() == 1:
        a, b = a.float(), b.float()  # e4m3 has no nan_to_num
    return torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())
