"""From what was seen and measured of a pair to its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fuselab.judge.find import Files
from fuselab.judge.record import (
    EAGER,
    REFUSED,
    SOLUTION,
    Finding,
    Outcome,
    Speedup,
    Time,
    Verdict,
)
from fuselab.model import Measurement, Status
from fuselab.planning.plan import CEILING

Measured = Mapping[str, Measurement]
# A batch of calls beside one of none says nothing on a machine that others load.
TOO_SHORT = "more than none"
# Two clocks may differ by what they count: launches, copies of results.
APART = 2.0
# Operators that make and shape memory, and compute nothing.
_SHAPING = (
    *("empty", "empty_like", "empty_strided", "new_empty", "resize_", "view", "reshape", "detach"),
    *("as_strided", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "flatten"),
    *("slice", "select", "contiguous", "is_pinned", "unflatten", "set_", "lift_fresh"),
    *("resolve_conj", "resolve_neg", "to", "alias"),
)
_COMPILED = ("Torch-Compiled Region", "TorchDynamo", "CompiledFunction")


@dataclass(frozen=True)
class Looked:
    """What the process that looks at a pair answered; `why`: how it ended."""

    problem: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    operators: Mapping[str, int] | None = None
    raised: str = ""
    fault: str = ""

    @classmethod
    def of(cls, answers: list[Mapping[str, Any]], why: str) -> Looked:
        """Return what its answers, in order, say."""
        known: dict[str, Any] = {}
        for answer in answers:
            known |= {name: said for name, said in answer.items() if name != "finding"}
        found = [answer["finding"] for answer in answers if "finding" in answer]
        problem = known.get("problem", {})
        fault = known.get("fault") or problem.get("fault", "") or ("" if problem else why)
        operators, raised = known.get("operators"), known.get("raised", "")
        if problem and operators is None and not raised:
            raised = why
        findings = tuple(Finding(name, text) for name, text in found)
        return cls(problem, findings, operators, raised, fault)


def verdict(
    files: Files, device: str, looked: Looked, alone: Measured, together: Measured
) -> Verdict:
    """Return the verdict of a pair.

    alone     Model and the solution, each in a process of its own, by name
    together  these and the baselines in one process; empty where `alone` refused the solution
    """
    known: dict[str, Any] = {
        "name": files.name,
        "problem": files.problem,
        "solution": files.solution,
        "device": device,
        "dtype": looked.problem.get("dtype", ""),
    }
    if fault := looked.fault or _of_model(alone):
        return Verdict(outcome=Outcome.UNJUDGED, reasons=(fault,), **known)
    reasons = tuple(dict.fromkeys(_reasons(looked, alone, together)))
    known |= {"runs": runs(looked.operators), "operators": looked.operators or {}}
    warnings = tuple(_warnings(looked, alone, together, not reasons))
    if reasons:
        return Verdict(outcome=Outcome.REFUSED, reasons=reasons, warnings=warnings, **known)
    timed = {name: m for name, m in together.items() if m.status.has_number}
    mine = timed[SOLUTION]
    return Verdict(
        outcome=Outcome.RIGHT,
        warnings=warnings,
        times={name: Time.of(m) for name, m in timed.items()},
        alone={name: Time.of(m) for name, m in alone.items() if m.status.has_number},
        speedups={
            name: Speedup.of(mine, m)
            for name, m in timed.items()
            if name not in (SOLUTION, CEILING)
        },
        lacking={n: f"{m.status}: {m.reason}" for n, m in together.items() if n not in timed},
        error=mine.accuracy.max_eps if mine.accuracy else None,
        **known,
    )


def runs(operators: Mapping[str, int] | None) -> str:
    """Return what a call is made of, by the outermost operators that torch's profiler saw."""
    if operators is None:
        return ""
    if any(name.startswith(_COMPILED) for name in operators):
        return "compiled"
    working = [name for name in operators if name.removeprefix("aten::") not in _SHAPING]
    return "native" if working and all(n.startswith("aten::") for n in working) else "own"


def too_short(measured: Measurement) -> bool:
    """Say whether a cell was right, and only its time from outside could not be told."""
    return measured.status is Status.INVALID and TOO_SHORT in measured.reason


def _of_model(measured: Measured) -> str:
    """Return why Model has no number, or ""; a machine that others load is no reason."""
    eager = measured.get(EAGER)
    if eager is None or eager.status.has_number or too_short(eager):
        return ""
    return f"Model itself is {eager.status}: {eager.reason}"


def _reasons(looked: Looked, alone: Measured, together: Measured) -> Iterator[str]:
    if looked.raised:
        yield f"error: {looked.raised}"
    for finding in looked.findings:
        if finding.name in REFUSED:
            yield f"invalid: it {finding}"
    for measured in (alone, together):
        mine = measured.get(SOLUTION)
        if mine and not mine.status.has_number and not too_short(mine):
            yield f"{mine.status}: {mine.reason}"
    if beside := _of_model(together):
        yield f"invalid: in one process with it {beside}"


def _warnings(
    looked: Looked, alone: Measured, together: Measured, right: bool
) -> Iterator[Finding]:
    yield from (f for f in looked.findings if not (right and f.name in REFUSED))
    if looked.problem.get("constants"):
        yield Finding("constants", ", ".join(looked.problem["constants"]))
    if looked.problem.get("weak"):
        yield Finding("weak")
    if looked.operators and looked.operators == looked.problem.get("operators"):
        yield Finding("native")
    if right:
        yield from _about_times(alone, together)


def _about_times(alone: Measured, together: Measured) -> Iterator[Finding]:
    mine = together[SOLUTION]
    if mine.status is Status.NOISY:
        yield Finding("noisy", mine.reason)
    outside = [alone[name] for name in (SOLUTION, EAGER)]
    if not all(m.status.has_number for m in outside):
        yield Finding("untimed", "others loaded the machine")
        return
    if any(m.status is Status.NOISY for m in outside):
        yield Finding("noisy", "others loaded the machine while it was timed from outside")
        return
    inside, out = Speedup.of(mine, together[EAGER]), Speedup.of(*outside)
    if inside.low > APART * out.high:
        yield Finding("clocks", f"{inside.ratio:.3g} times Model's speed, {out.ratio:.3g} outside")
