"""Checks of the results of timed calls: at least a tenth of them, nobody can foresee which."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fuselab.model import Status
from fuselab.worker.check import Figures, over_budget
from fuselab.worker.problem import InputSet, Problem
from fuselab.worker.protocol import judge
from fuselab.worker.trial import Trial
from fuseline.testing import accuracy

SHARE = 0.1
COUNTED = ("timed_calls", "checked_calls")


class Audit:
    """Looks at the last call of each block, and at the end of a sweep at others, up to a tenth."""

    def __init__(self, problem: Problem, eager: Figures | None) -> None:
        self._problem = problem
        self._eager: dict[int, Figures | None] = {0: eager}
        self._right: dict[str, Mapping[str, Tensor]] = {}
        self._random = random.Random()

    def choose(self, trial: Trial, count: int, closing: bool) -> frozenset[int]:
        """Return the calls of a block to check; `closing` blocks make up for what is missing."""
        last, wanted = count - 1, 0
        if closing:
            timed, checked = (trial.proof.get(name, 0) for name in COUNTED)
            wanted = max(1, math.ceil(SHARE * (timed + count)) - checked - 1)
        return frozenset({last, *self._random.sample(range(last), min(last, wanted))})

    def verify(self, trial: Trial, count: int, outputs: Mapping[int, Any]) -> None:
        """End the trial if a result of its timed calls is not right."""
        if trial.fn is None:
            return
        contents = self._contents(count)
        for index, output in outputs.items():
            if trial.alive:
                self._verify(trial, contents[index], output)
        for name, more in zip(COUNTED, (count, len(outputs)), strict=True):
            trial.proof[name] = trial.proof.get(name, 0) + more

    def _contents(self, count: int) -> list[int]:
        held = self._problem.contents
        return [held[i] for i in self._problem.order(count, len(self._problem.sets))]

    def _verify(self, trial: Trial, content: int, output: Any) -> None:
        try:
            results = self._problem.named(output)
            reason = self._problem.misshapen(results) or self._judge(trial, content, results)
        except Exception as error:
            phase = "the check of a timed call"
            reason = judge(error, trial.name, phase, self._problem.device)
        if reason:
            trial.accuracy = None
            trial.fail(Status.INCORRECT, f"right at first, wrong in a timed call: {reason}")

    def _judge(self, trial: Trial, content: int, results: dict[str, Tensor]) -> str:
        """Return why results are wrong, or ""; what was found right once is only compared."""
        right = self._right.get(trial.name, trial.checked) if content == 0 else None
        if right:
            same = results.keys() == right.keys() and all(
                torch.equal(result, right[name]) for name, result in results.items()
            )
            trial.proof["repeatable"] = same and trial.proof.get("repeatable", True)
            if same:
                return ""
        given = self._problem.sets[self._problem.contents.index(content)]
        figures = self._errors(given, results)
        reason = over_budget(self._problem, trial.name, results, figures, None)
        if reason:
            eager = self._yardstick(content, given)
            reason = over_budget(self._problem, trial.name, results, figures, eager)
        if not reason and content == 0 and trial.checked:
            self._right[trial.name] = results
        return reason

    def _yardstick(self, content: int, given: InputSet) -> Figures | None:
        """Return eager's own errors on these contents, or None where it cannot run."""
        if content not in self._eager:
            self._eager[content] = None
            eager = self._problem.spec.eager
            if eager is not None and self._eager[0] is not None:
                self._eager[content] = self._errors(given, self._run(eager.fn, given))
        return self._eager[content]

    def _run(self, fn: Any, given: InputSet) -> dict[str, Tensor]:
        return accuracy.run(
            fn, self._problem.spec, given.inputs, self._problem.direction, given.dys
        )

    def _errors(self, given: InputSet, results: Mapping[str, Tensor]) -> Figures:
        return accuracy.errors(
            self._problem.spec, given.inputs, self._problem.direction, results, given.dys
        )
