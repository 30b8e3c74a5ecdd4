"""fuselab tune --from: rules for impl="auto", from what a run measured.

A class of calls (direction, dtype, size class) gets a rule where another implementation is faster
than what "auto" takes without one in every cell that is decided, and in so many at least.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fuselab.commands import exits, paths, select
from fuselab.model import Measurement, Status
from fuselab.output.plain import say
from fuselab.planning.plan import PlanError, unknown
from fuselab.statistics.comparison import Comparison, Verdict, compare, pair
from fuselab.storage.store import Store
from fuselab.worker.operators import specs
from fuseline.core.selection import rules
from fuseline.core.selection.rules import DTYPE, Fact, OneOf, Rule, Span, Wanted
from fuseline.core.selection.select import Selector, asked
from fuseline.core.selection.tuned import TunedError
from fuseline.core.specs.spec import OpSpec

CELLS = 3
# What an implementation may be in a cell of a class that is to become its own.
HARMLESS = (Status.OK, Status.NOISY, Status.UNSUPPORTED)
Problem = tuple[str, str, str]  # direction, case, dtype
Class = tuple[tuple[str, Wanted], ...]


@dataclass(frozen=True)
class Learned:
    """The rules found, and how many classes there were to find some for."""

    rules: tuple[Rule, ...]
    classes: int


def run(
    target: str, measured: str, by: Sequence[str], out: str | None, *, as_json: bool = False
) -> int:
    """Write the rules that a run's figures give; 3 if no class has figures enough."""
    paths.check_file("--out", out)
    ((_, found),) = select.specs_of([target]).items()
    if len(found) != 1:
        raise PlanError(f"target: {target} has {len(found)} operators, expected one")
    (spec,) = found
    with Store.open_readonly(Path(measured)) as store:
        cells = [m for m in store.measurements() if m.cell.op == spec.name]
        environments = store.environment()
    if not cells:
        raise PlanError(f"--from: {measured} has no cell of {spec.name}")
    selector, machines = _selector(spec, cells[0]), sorted({_machine(e) for e in environments})
    if len(machines) > 1:
        raise PlanError(f"--from: {measured} is of {', '.join(machines)}, expected one machine")
    (machine,), (environment, *_) = machines, environments
    facts = selector.auto.facts if selector.auto else {}
    chosen = _facts(selector, facts, by)
    about = {"run": measured} | {k: environment[k] for k in ("gpu", "torch") if k in environment}
    learned = _learn(spec, selector, cells, chosen, about)
    file = Path(out) if out else rules.user_file(spec.name, machine)
    if file is None:
        raise PlanError("--out: got nothing, expected FILE: there is no home folder to write to")
    if learned.rules:
        rules.save(file, machine, (*learned.rules, *_known_bad(file, facts, selector)))
    _show(learned, file, selector, as_json)
    return exits.OK if learned.classes else exits.NO_DATA


def _selector(spec: OpSpec, one: Measurement) -> Selector:
    """Return what chooses among the operator's implementations."""
    ours = next((impl for impl in spec.implementations if impl.role == "ours"), None)
    if ours is not None:
        try:
            return asked(ours.fn, **_inputs(spec, one.cell.case, one.cell.dtype)).selector
        except TypeError:
            pass
    raise PlanError(f"target: {spec.name} takes no impl='auto', so there is nothing to choose")


def _inputs(spec: OpSpec, case: str, dtype: str) -> dict[str, Any]:
    """Return the inputs of a problem without their memory."""
    own, problem = specs.case(spec, case)
    with FakeTensorMode():
        generator = torch.Generator()
        return own.inputs(problem, getattr(torch, dtype), torch.device("cpu"), generator)


def _machine(environment: Mapping[str, Any]) -> str:
    """Return what rules call the machine of a run."""
    if environment.get("device") != "cuda":
        return str(environment.get("device"))
    return "sm_" + str(environment["compute_capability"]).replace(".", "")


def _facts(selector: Selector, facts: Mapping[str, Fact], by: Sequence[str]) -> dict[str, Fact]:
    """Return what tells classes apart: the dtype, and what is named or harmless."""
    for name in by:
        if name not in facts:
            raise unknown("by", name, list(facts))
        if facts[name].promised:
            say(f"--by {name}: a result of {selector.op} then depends on {name}, which it "
                  "promises not to")  # fmt: skip
    names = by or [name for name, fact in facts.items() if not fact.promised]
    return {name: facts[name] for name in dict.fromkeys((DTYPE, *names))}


def _learn(
    spec: OpSpec,
    selector: Selector,
    cells: Sequence[Measurement],
    facts: Mapping[str, Fact],
    about: Mapping[str, Any],
) -> Learned:
    by_impl: dict[str, list[Measurement]] = defaultdict(list)
    for m in cells:
        by_impl[m.cell.impl].append(m)
    usual = next((c.name for c in selector.order if _runs(by_impl[c.name])), None)
    if usual is None:
        have = ", ".join(choice.name for choice in selector.order)
        raise PlanError(f"--from: none of {have} ran, of which 'auto' takes the first")
    classes: dict[Problem, Class] = {_problem(m): _class(spec, m, facts) for m in by_impl[usual]}
    found: dict[tuple[str, Class], list[Rule]] = defaultdict(list)
    judged = set()
    for name in (n for n in selector.names[:-1] if n != usual and n in by_impl):
        barred = {
            (m.cell.direction, classes.get(_problem(m)))
            for m in by_impl[name]
            if m.status not in HARMLESS
        }
        pairs = pair(by_impl[usual], by_impl[name], across=True)
        verdicts: dict[tuple[str, Class], list[Comparison]] = defaultdict(list)
        for one in compare(pairs, together=True):
            where = classes.get((one.direction, one.case, one.dtype))
            if where is not None and one.verdict is not Verdict.UNKNOWN:
                verdicts[one.direction, where].append(one)
        for key, decided in verdicts.items():
            if len(decided) < CELLS:
                continue
            judged.add(key)
            if key not in barred and all(c.verdict is Verdict.FASTER for c in decided):
                found[key].append(_rule(*key, name, decided, about))
    best = (min(those, key=lambda rule: float(rule.evidence["ratio"])) for those in found.values())
    return Learned(tuple(best), len(judged))


def _runs(those: Sequence[Measurement]) -> bool:
    return any(m.status.has_number for m in those)


def _problem(m: Measurement) -> Problem:
    return m.cell.direction, m.cell.case, m.cell.dtype


def _class(spec: OpSpec, m: Measurement, facts: Mapping[str, Fact]) -> Class:
    """Return the class of calls that a problem belongs to."""
    (ours, *_) = (impl for impl in spec.implementations if impl.role == "ours")
    args = asked(ours.fn, **_inputs(spec, m.cell.case, m.cell.dtype)).call
    return tuple((name, _around(fact, fact.of(*args))) for name, fact in facts.items())


def _around(fact: Fact, value: Any) -> Wanted:
    """Return the size class of a number; of what is none, the value alone."""
    if not fact.ends:
        return OneOf((value,))
    bounds = (None, *fact.ends, None)
    spans = (Span(None if a is None else a + 1, b) for a, b in pairwise(bounds))
    return next(span for span in spans if span.holds(value))


def _rule(
    direction: str,
    where: Class,
    name: str,
    decided: Sequence[Comparison],
    about: Mapping[str, Any],
) -> Rule:
    ratios = [one.ratio or math.nan for one in decided]
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    told = {"cells": len(ratios), "ratio": round(mean, 3), "worst": round(max(ratios), 3)}
    return Rule(direction, dict(where), (name,), {**about, **told})


def _known_bad(file: Path, facts: Mapping[str, Fact], selector: Selector) -> Iterator[Rule]:
    """Yield what a file says that no measurement replaces."""
    try:
        old = rules.load(file, facts, selector.names) if file.is_file() else ()
    except TunedError as error:
        raise PlanError(str(error)) from error
    yield from (rule for rule in old if rule.bad)


def _show(learned: Learned, file: Path, selector: Selector, as_json: bool) -> None:
    if as_json:
        told = [f"{rule.direction}: {rule}" for rule in learned.rules]
        print(json.dumps({"file": str(file), "classes": learned.classes, "rules": told}))
    for rule in learned.rules if not as_json else ():
        print(f"{selector.op} {rule.direction}: {rule}")
    say(f"{learned.classes} classes have {CELLS} decided cells; {len(learned.rules)} rules")
    if learned.rules:
        say(f"rules in {file}")
