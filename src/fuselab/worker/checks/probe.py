"""Questions to an implementation beside the timing: done when it returned? computed anew?"""

from __future__ import annotations

import random
from dataclasses import replace
from time import perf_counter, sleep

import torch
from torch import Tensor

from fuselab.model import Status
from fuselab.timers import Call
from fuselab.worker.checks.check import require_settings
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.protocol import Emit, describe, judge, synchronize
from fuselab.worker.tensors.problem import InputSet, Problem
from fuseline.testing import settings
from fuseline.testing.poison import poison

# Looks at a result right after the call and once more after this.
SETTLE_S = 0.02
LOOKS = 2
# So many results in use at once, of so many bytes in all, gathered for so long.
HELD, HELD_BYTES, HELD_S = 100, 128 << 20, 0.2
# A busy machine may stretch either side; who remembers does so each time.
ATTEMPTS = 4
# Less than this share of the time on contents seen before, and so much less of it at least.
RECALL_SHARE = 0.5
RECALL_US = 10.0
# How contents come a second time: what may be kept by contents, by address, by version.
AGAIN = ("written there again", "left there", "at another address")
_RANDOM = random.SystemRandom()


class _Malformed(Exception):
    """A call gave something else than results; the text says what."""


def question(trial: Trial, problem: Problem, emit: Emit) -> None:
    """End the trial if its results come late or from memory."""
    emit("start", trial.name, "probe")
    before = settings.snapshot(problem.device)
    try:
        with trial.around:
            reason = (
                _late(trial, problem) or _recalled(trial, problem) or _same_memory(trial, problem)
            )
    except _Malformed as malformed:
        trial.fail(Status.INCORRECT, f"right at first, wrong in a later call: {malformed}")
        return
    except (Exception, SystemExit) as error:
        trial.fail(Status.ERROR, judge(error, trial.name, "probe", problem.device))
        return
    finally:
        problem.restore()
    if reason:
        trial.fail(Status.INVALID, reason)
    require_settings(trial, before, problem.device)


def _late(trial: Trial, problem: Problem) -> str:
    """Say that a result still changed after its call had returned, or ""."""
    for _ in range(LOOKS):
        (call,) = trial.make_calls(1, 1)
        # What lies in the memory that the results will get is no result of an earlier call.
        poison(problem.blank())
        synchronize(problem.device)
        results = _results(problem, call())
        early = [result.clone() for result in results]
        sleep(SETTLE_S)
        synchronize(problem.device)
        if not all(_same(a, b) for a, b in zip(early, results, strict=True)):
            return "its result still changed after the call had returned"
    return ""


def _same_memory(trial: Trial, problem: Problem) -> str:
    """Say that a result lies where an earlier one, still in use, or an input does, or ""."""
    size = sum(blank.nbytes for blank in problem.blank())
    most = max(3, min(HELD, HELD_BYTES // max(1, size)))
    given = {_memory(tensor): name for name, tensor in problem.next_set.tensors.items()}
    held: dict[int, list[Tensor]] = {}
    begin = perf_counter()
    for number in range(most):
        if number >= 3 and perf_counter() - begin > HELD_S:
            break
        (call,) = trial.make_calls(1, 1)
        results = [result for result in _results(problem, call()) if result.numel()]
        for place in map(_memory, results):
            if place in held and place not in given:
                return "two of its results, both in use, lie in the same memory"
            if place in given and problem.direction == "fwd" and not problem.gives_views:
                return f"its result lies in the memory of its input {given[place]}"
        held |= {_memory(result): results for result in results}
    return ""


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


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
    """Say that contents seen before take much less time than new ones, or ""."""
    reason = ""
    for _ in range(ATTEMPTS):
        new, again = _times(trial, problem)
        how, least = min(again.items(), key=lambda pair: pair[1])
        if least > RECALL_SHARE * new or new - least < RECALL_US:
            return ""
        reason = f"it takes {least:.0f} us on contents it has seen before, {how}, {new:.0f} on new"
    return reason


def _times(trial: Trial, problem: Problem) -> tuple[float, dict[str, float]]:
    """Return the least us on new contents, and those on the same ones by how they come again."""
    news: list[float] = []
    again: dict[str, float] = {}
    for how in _RANDOM.sample(AGAIN, len(AGAIN)):
        contents = problem.draw()
        # What comes before a timed call is alike for all: a call and a copy.
        problem.place(problem.origin)
        _elapsed(trial, problem)
        problem.place(contents)
        us, first = _elapsed(trial, problem)
        news.append(us)
        problem.place(contents, silent=how == "left there")
        elsewhere = contents if how == "at another address" else None
        again[how], second = _elapsed(trial, problem, elsewhere)
        same = all(_same(a, b) for a, b in zip(first, second, strict=True))
        repeatable = same and trial.proof.repeatable is not False
        trial.proof = replace(trial.proof, repeatable=repeatable)
    return min(news), again


def _elapsed(
    trial: Trial, problem: Problem, given: InputSet | None = None
) -> tuple[float, list[Tensor]]:
    """Return the us of one call and its results."""
    call = _call(trial, problem, given)
    synchronize(problem.device)
    begin = perf_counter()
    output = call()
    synchronize(problem.device)
    taken = (perf_counter() - begin) * 1e6
    return taken, _results(problem, output)


def _call(trial: Trial, problem: Problem, given: InputSet | None) -> Call:
    if given is not None and trial.fn is not None:
        return problem.call_on(trial.fn, given)
    return trial.make_calls(1, 1)[0]


def _same(a: Tensor, b: Tensor) -> bool:
    if a.is_floating_point() and a.element_size() == 1:
        a, b = a.float(), b.float()  # e4m3 has no nan_to_num
    return torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())
