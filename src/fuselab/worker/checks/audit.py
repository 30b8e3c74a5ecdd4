"""Checks of the results of timed calls: a tenth of them, drawn after they have returned."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fuselab.model import Status
from fuselab.worker.checks.check import judge_of
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.protocol import judge
from fuselab.worker.tensors.problem import InputSet, Problem
from fuseline.testing.oracle import accuracy
from fuseline.testing.oracle.judge import Figures

SHARE = 0.1
# Products and sums of what is checked of one call, where it is of separate problems: some 10 ms of
# fp64 on an H100.
FLOPS = 2.0**38
_RANDOM = random.SystemRandom()


class Audit:
    """Holds results of every timed block against fp64, on contents that nobody saw before."""

    WRONG = "right at first, wrong in a timed call"

    def __init__(self, problem: Problem, yardstick: bool) -> None:
        self._problem = problem
        # Whether eager's own errors tell how well these contents are conditioned.
        self._eager = problem.spec.eager if yardstick else None

    def verify(self, trial: Trial, count: int, sets: int, kept: Mapping[int, object]) -> None:
        """End the trial if a kept result of the last `count` calls is not right."""
        order = self._problem.order(count, sets)
        for index, output in kept.items():
            if trial.alive:
                self._verify(trial, self._problem.sets[order[index]], output)
        timed, checked = trial.proof.timed_calls or 0, trial.proof.checked_calls or 0
        trial.proof = replace(
            trial.proof, timed_calls=timed + count, checked_calls=checked + len(kept)
        )

    def _verify(self, trial: Trial, given: InputSet, output: Any) -> None:
        try:
            results = self._problem.named(output)
            reason = self._problem.misshapen(results) or self._judge(
                trial.name, *self._drawn(given, results)
            )
        except Exception as error:
            phase = "the check of a timed call"
            reason = judge(error, trial.name, phase, self._problem.device)
        if reason:
            trial.accuracy = None
            trial.fail(Status.INCORRECT, f"{self.WRONG}: {reason}")

    def _drawn(self, given: InputSet, results: dict[str, Any]) -> tuple[InputSet, dict[str, Any]]:
        """Return a call, or of one of expensive separate problems some, drawn after it returned."""
        spec, inputs = self._problem.spec, given.inputs
        names = spec.separate(inputs) if spec.separate else ()
        count = inputs[names[0]].shape[0] if names else 1
        wanted = max(1, int(count * FLOPS / max(self._problem.cost.flops, 1)))
        if wanted >= count:
            return given, results
        at = _RANDOM.sample(range(count), wanted)
        some = {n: inputs[n][at] for n in names}
        dys = given.dys and tuple(dy[at] for dy in given.dys)
        return InputSet({**inputs, **some}, dys), {n: t[at] for n, t in results.items()}

    def _judge(self, name: str, given: InputSet, results: dict[str, Any]) -> str | None:
        """Return why results are wrong; eager is asked where they are not plainly right."""
        why_wrong = judge_of(self._problem, name, given).first_reason
        (figures,) = self._errors(given, results)
        reason = why_wrong(results, figures, None)
        if reason and self._eager is not None:
            figures, eager = self._errors(given, results, self._run(self._eager.fn, given))
            reason = why_wrong(results, figures, eager)
        return reason

    def _run(self, fn: Any, given: InputSet) -> dict[str, Any]:
        return accuracy.run(
            fn, self._problem.spec, given.inputs, self._problem.direction, given.dys
        )

    def _errors(self, given: InputSet, *results: Mapping[str, Any]) -> Sequence[Figures]:
        return accuracy.errors_of_each(
            self._problem.spec, given.inputs, self._problem.direction, results, given.dys
        )
