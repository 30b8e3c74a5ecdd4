"""fuselab list: the operators, with their implementations, suites, dtypes and cases."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from fuselab.commands import exits, select
from fuselab.records import columns
from fuselab.worker.implementations import baselines
from fuseline.core.specs.spec import OpSpec

WIDEST = 100
TITLE = 23  # "suite seed-add_rms_norm"
SHOWN = 5


def run(targets: Sequence[str], *, as_json: bool = False) -> int:
    """Print what can be measured."""
    found = [spec for those in select.specs_of(targets).values() for spec in those]
    if as_json:
        print(json.dumps([_record(spec) for spec in found]))
        return exits.OK
    for spec in found:
        _print(_record(spec), whole=bool(targets))
    if not targets:
        for given in columns.plugged().values():
            metric = given.value
            print(f"metric {metric.name} ({given.package}): {metric.meaning}, {metric.unit}")
        print("fuselab list OPERATOR names all cases; --json has everything")
        print("suite wild, of every operator: problems drawn from a seed (fuselab run --help)")
        print("suite all: every suite but check and wild")
    return exits.OK


def _record(spec: OpSpec) -> dict[str, Any]:
    row = select.row(spec)
    return {
        "op": spec.name,
        "formula": spec.formula,
        "impls": row.impls,
        "if_named": baselines.if_named(spec),
        "rivals": {name: rival.version for name, rival in baselines.rivals_of(spec).items()},
        "directions": row.directions,
        "dtypes": row.dtypes,
        "suites": {
            suite: [name for name, suites in row.cases if suite in suites] for suite in row.suites
        },
        "cases": [name for name, _ in row.cases],
    }


def _print(record: dict[str, Any], *, whole: bool) -> None:
    """Print an operator at the terminal's width; `whole`: every case, else the ends of a suite."""
    _wrap("", f"{record['op']}: {record['formula']}")
    for name in ("impls", "directions", "dtypes"):
        _wrap(name, ", ".join(record[name]))
    _wrap("impls, if named", ", ".join(record["if_named"]) or "none")
    found = (f"{name} ({what or 'not installed'})" for name, what in record["rivals"].items())
    _wrap("rivals", ", ".join(found) or "none")
    alone = set(record["cases"]).difference(*record["suites"].values())
    suites = {f"suite {suite}": cases for suite, cases in record["suites"].items()}
    for title, cases in (suites | ({"no suite": sorted(alone)} if alone else {})).items():
        shown = cases if whole or len(cases) <= SHOWN else [*cases[: SHOWN - 1], "...", cases[-1]]
        _wrap(title, f"{len(cases)} case{'s' * (len(cases) != 1)}: {', '.join(shown)}")
    print()


def _wrap(title: str, text: str) -> None:
    width = min(shutil.get_terminal_size().columns, WIDEST)
    first = f"  {title:<{TITLE}} " if title else ""
    after = " " * (TITLE + 3 if title else 4)
    for line in textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=after, break_on_hyphens=False
    ):
        print(line)
