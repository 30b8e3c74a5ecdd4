"""check: every question that an operator's implementations are asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fuseline.core.specs.spec import Case, Implementation, OpSpec
from fuseline.testing import settings
from fuseline.testing.oracle import accuracy
from fuseline.testing.place import told
from fuseline.testing.questions import edges, gradients, memory, misuse, state, values
from fuseline.testing.report import SKIPPED, CheckReport, Finding
from fuseline.testing.trial import CONTIGUOUS, Trial, floating

Level = Literal["standard", "quick"]
Question = Callable[[Trial], Iterator[Finding]]

ON_EVERY_CASE: dict[str, Question] = {
    "forward": values.forward,
    "gradient": values.gradients,
    "outputs": values.outputs,
}
ON_SMALL_CASES: dict[str, Question] = {
    "layouts": values.layouts,
    "overlaps": values.overlaps,
    "expanded-gradient": values.expanded_gradient,
    "empty": values.empty,
    "ranks": values.ranks,
    "many-rows": values.many_rows,
    "magnitude": values.magnitude,
    "side-values": values.side_values,
    "lengths": edges.lengths,
    "crowd": edges.crowd,
    "zeros": edges.zeros,
    "incoming": edges.incoming,
    "nan": partial(values.non_finite, value=math.nan),
    "inf": partial(values.non_finite, value=math.inf),
    "unchanged": memory.unchanged,
    "deterministic": memory.deterministic,
    "stale": memory.stale,
    "alias": memory.alias,
    "cached": memory.cached,
    "saved": memory.saved,
    "stream": memory.stream,
    "global-state": state.global_state,
    "threads": state.threads,
    "graphs": state.graphs,
    "gradient-presence": gradients.presence,
    "gradcheck": gradients.gradcheck,
    "gradgradcheck": gradients.gradgradcheck,
    "second-order": gradients.second_order,
}
ONCE: dict[str, Question] = {"errors": misuse.errors}

# Elements of a case's largest input: beyond these a case is left out, or not asked everything.
LARGEST = {("standard", "cpu"): 1 << 22, ("standard", "cuda"): 1 << 26, ("quick", "cpu"): 1 << 17}
SMALL = {"standard": 1 << 18, "quick": 1 << 16}


@dataclass(frozen=True)
class _Sized:
    """A case, the elements of its largest input, and each input's rank and dtype."""

    case: Case
    elements: int
    kind: tuple[tuple[int, torch.dtype] | None, ...]


def check(
    spec: OpSpec,
    impls: Sequence[str] | None = None,
    *,
    device: str | torch.device = "cpu",
    dtypes: Sequence[torch.dtype] | None = None,
    cases: Sequence[str | Case] | None = None,
    level: Level = "standard",
) -> CheckReport:
    """Run all checks on the implementations of an operator and return what they found.

    spec    the operator: ours, or your own
    impls   names of implementations; None: all but those that must be named
    device  where to run
    dtypes  torch dtypes; None: all of the spec
    cases   names of cases, or `Case` objects; None: the spec's suite "check", else all that are not
            too large
    level   "standard", or "quick": fewer and smaller cases

    A crash of an implementation is a finding; an error of the spec's own reference or make_inputs
    is raised. Raises ValueError (level, cases) or KeyError (impls).
    """
    if level not in SMALL:
        raise ValueError(f"level: got {level!r}, expected one of: {', '.join(SMALL)}")
    device = torch.device(device)
    usual = [impl for impl in spec.implementations if not impl.asked]
    chosen = [spec.implementation(n) for n in impls] if impls else usual
    sized = _sized_cases(spec, cases, device, level)
    findings: list[Finding] = []
    for impl in chosen:
        reason = impl.unavailable(device.type)
        if reason:
            findings.append(Finding(impl.name, SKIPPED, "", "", "", True, reason))
        else:
            findings.extend(_ask_all(spec, impl, sized, dtypes or spec.dtypes, device, level))
            if not spec.row_inputs:
                why = "what needs rows was not asked: the spec has no row_inputs"
                findings.append(Finding(impl.name, SKIPPED, "", "", "", True, why))
    return CheckReport(spec.name, tuple(findings))


def _ask_all(
    spec: OpSpec,
    impl: Implementation,
    sized: list[_Sized],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    level: Level,
) -> Iterator[Finding]:
    small = _small_cases(sized, level)
    before = settings.snapshot(device)
    for dtype in dtypes:
        for case in (s.case for s in sized):
            trial = Trial(spec, impl, case, dtype, device, level == "standard", before)
            questions = ON_EVERY_CASE | (ON_SMALL_CASES if case in small else {})
            if case is sized[0].case and dtype == dtypes[0]:
                questions = questions | ONCE
            for name, question in questions.items():
                yield from _ask(trial, name, question)


def _ask(trial: Trial, name: str, question: Question) -> Iterator[Finding]:
    try:
        yield from question(trial)
    except (Exception, SystemExit) as error:
        yield trial.finding(name, f"raised {told(error)}", CONTIGUOUS)


def _sized_cases(
    spec: OpSpec, cases: Sequence[str | Case] | None, device: torch.device, level: Level
) -> list[_Sized]:
    """Return the cases to check with their sizes in elements, smallest first."""
    wanted: list[Case] = (
        [_named(spec, c) for c in cases]
        if cases
        else [c for c in spec.cases if "check" in c.suites] or list(spec.cases)
    )
    if not wanted:
        raise ValueError(f"operator {spec.name!r} has no cases to check")
    sized = sorted((_size(spec, c, device) for c in wanted), key=lambda s: s.elements)
    limit = LARGEST.get((level, device.type), 1 << 20)
    fitting = [s for s in sized if s.elements <= limit]
    accuracy.errors(spec, _first_inputs(spec, sized[0].case, device), "fwd", {})
    return sized if cases else fitting or sized[:1]


def _small_cases(sized: list[_Sized], level: Level) -> list[Case]:
    """Return the cases that get every check; "quick" takes few, but one of every kind of input."""
    small = [s for s in sized if s.elements <= SMALL[level]] or sized[:1]
    if level == "quick":
        kinds = {s.kind: s for s in reversed(small)}.values()
        chosen = (small[0], small[len(small) // 2], small[-1], *kinds)
        return list({s.case.name: s.case for s in chosen}.values())
    return [s.case for s in small]


def _named(spec: OpSpec, case: str | Case) -> Case:
    if isinstance(case, Case):
        return case
    found = next((c for c in spec.cases if c.name == case), None)
    if found is None:
        have = ", ".join(c.name for c in spec.cases)
        raise ValueError(f"cases: operator {spec.name!r} has no case {case!r}; it has: {have}")
    return found


def _size(spec: OpSpec, case: Case, device: torch.device) -> _Sized:
    """Return the case's size, found without allocating its inputs where make_inputs allows that."""
    try:
        with FakeTensorMode():
            inputs = _first_inputs(spec, case, device)
    except Exception:
        inputs = _first_inputs(spec, case, device)
    elements = max((t.numel() for t in floating(inputs).values()), default=0)
    kind = tuple((t.dim(), t.dtype) if isinstance(t, Tensor) else None for t in inputs.values())
    return _Sized(case, elements, kind)


def _first_inputs(spec: OpSpec, case: Case, device: torch.device) -> dict[str, object]:
    return spec.inputs(case, spec.dtypes[0], device, torch.Generator(device).manual_seed(0))
