"""fuselab check: is every implementation right? Each is asked in a process it may crash."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from fuselab.commands import exits, select
from fuselab.commands.progress import Steps
from fuselab.planning.plan import Filters, expand
from fuselab.runner import Worker
from fuselab.worker import entry
from fuseline.core.specs.spec import OpSpec
from fuseline.testing import CheckReport

# The checker asks an implementation everything in one go.
PATIENCE = 10


@dataclass(frozen=True)
class Verdict:
    """What was found out about one implementation; `death` says why there is no report, or ""."""

    op: str
    impl: str
    report: CheckReport | None
    death: str = ""

    @property
    def failures(self) -> list[str]:
        found = [str(f) for f in self.report.failures] if self.report else []
        return [*found, *([self.death] if self.death else [])]

    def kinds(self) -> Iterator[tuple[str, int]]:
        """Return each check's or error's first failure, and how many more there are of it."""
        for _, alike in groupby(sorted(self.failures, key=_kind), key=_kind):
            first, *rest = alike
            yield first, len(rest)

    def worst(self) -> Iterator[str]:
        """Return the largest error of each dtype's outputs and gradients on the spec's cases."""
        figures = self.report.worst() if self.report else {}
        for (dtype, result), found in figures.items():
            ratio = "" if found.eager_ratio is None else f", {found.eager_ratio:.3g} x eager's"
            if result.startswith("out"):
                what, error = f"{dtype} {result}", f"{found.max_ulp:.3g} ULP"
            else:
                what, error = f"{dtype} d{result}", f"{found.scaled:.3g} eps * max|d{result}|"
            yield f"{what}: {error}, max {found.max_abs:.3g}, RMS {found.rms:.3g}{ratio}"

    @property
    def asked(self) -> int:
        return len(self.report.findings) - len(self.report.skipped) if self.report else 0

    @property
    def summary(self) -> str:
        if self.failures:
            return "FAILED"
        skipped = self.report.skipped if self.report else ()
        if self.asked:
            return "; ".join((f"{self.asked} checks ok", *(finding.reason for finding in skipped)))
        return f"skipped: {skipped[0].reason}" if skipped else "nothing to check"

    def as_dict(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "impl": self.impl,
            "checks": self.asked,
            "ok": self.asked > 0 and not self.failures,
            "summary": self.summary,
            "failures": self.failures,
            "accuracy": [
                {"dtype": dtype, "result": result, **asdict(found)}
                for (dtype, result), found in (self.report.worst() if self.report else {}).items()
            ],
        }


def _kind(failure: str) -> str:
    check, _, rest = failure.partition(" [")
    reason = rest.partition("]: ")[2]
    return reason if reason.startswith("raised ") else check


def run(
    targets: Sequence[str],
    filters: Filters,
    *,
    device: str | None = None,
    level: str = "standard",
    timeout: float = 120.0,
    as_json: bool = False,
) -> int:
    """Check the implementations; 1 if something is wrong, 3 if nothing could be asked."""
    chosen = select.device_of(device)
    found = select.specs_of(targets)
    todo = _todo(found, replace(filters, device=chosen))
    options = {
        "dtypes": select.dtype_names(filters.dtypes),
        "cases": filters.cases or None,
        "level": level,
    }
    verdicts = []
    with Worker(entry.main, chosen, timeout * PATIENCE) as worker, Steps(len(todo)) as steps:
        for op, source, impl in todo:
            verdict = _ask(worker, op, source, impl, options)
            verdicts.append(verdict)
            # Whoever stops the command now knows at least the first failure.
            steps.step(f"{op} {impl}", ": ".join([verdict.summary, *verdict.failures[:1]]))
    if as_json:
        print(json.dumps([verdict.as_dict() for verdict in verdicts]))
    else:
        _print(verdicts)
    if any(verdict.failures for verdict in verdicts):
        return exits.FAILED
    return exits.OK if any(verdict.asked for verdict in verdicts) else exits.NO_DATA


def _todo(found: Mapping[str, Sequence[OpSpec]], filters: Filters) -> list[tuple[str, str, str]]:
    """Return (operator, source, implementation), after the planner has looked at the names."""
    rows = [
        replace(select.row(spec, source), impls=_names(spec, filters))
        for source, those in found.items()
        for spec in those
    ]
    groups = expand(rows, filters)
    return list(dict.fromkeys((g.op, g.source, impl) for g in groups for impl in g.impls))


def _names(spec: OpSpec, filters: Filters) -> tuple[str, ...]:
    return tuple(i.name for i in spec.implementations if not i.asked or i.name in filters.impls)


def _ask(worker: Worker, op: str, source: str, impl: str, options: dict[str, Any]) -> Verdict:
    reply = worker.ask("check", op, source, impl, options)
    found = reply.results[0] if reply.results else None
    if reply.death:
        return Verdict(op, impl, found, f"{reply.death.status}: {reply.death.reason}")
    return Verdict(op, impl, None, found) if isinstance(found, str) else Verdict(op, impl, found)


def _print(verdicts: Sequence[Verdict]) -> None:
    for verdict in verdicts:
        print(f"{verdict.op:<16} {verdict.impl:<12} {verdict.summary}")
        for line in verdict.worst():
            print(f"{'':<16} {'':<12} {line}")
    said: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        for failure, more in verdict.kinds():
            rest = f" (and {more} more like it)" if more else ""
            said.setdefault((verdict.op, failure + rest), []).append(verdict.impl)
    for (op, failure), impls in said.items():  # what is wrong with the spec is wrong with all
        print(f"{op} {', '.join(impls)}: {failure}", file=sys.stderr)
