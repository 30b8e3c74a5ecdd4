"""fuselab list: the operators, with their implementations, suites, dtypes and cases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fuselab.commands import exits, select
from fuselab.worker import baselines
from fuseline.core.spec import OpSpec


def run(targets: Sequence[str], *, as_json: bool = False) -> int:
    """Print what can be measured."""
    found = [spec for those in select.specs_of(targets).values() for spec in those]
    if as_json:
        print(json.dumps([_record(spec) for spec in found]))
        return exits.OK
    for spec in found:
        _print(_record(spec))
    return exits.OK


def _record(spec: OpSpec) -> dict[str, Any]:
    row = select.row(spec)
    return {
        "op": spec.name,
        "formula": spec.formula,
        "impls": row.impls,
        "rivals": {name: rival.version for name, rival in baselines.rivals_of(spec).items()},
        "directions": row.directions,
        "dtypes": row.dtypes,
        "suites": {
            suite: [name for name, suites in row.cases if suite in suites] for suite in row.suites
        },
        "cases": [name for name, _ in row.cases],
    }


def _print(record: dict[str, Any]) -> None:
    print(f"{record['op']}: {record['formula']}")
    for name in ("impls", "directions", "dtypes"):
        print(f"  {name:<11} {', '.join(record[name])}")
    found = (f"{name} ({what or 'not installed'})" for name, what in record["rivals"].items())
    print(f"  {'rivals':<11} {', '.join(found) or 'none'}")
    sizes = (f"{suite} ({len(cases)} cases)" for suite, cases in record["suites"].items())
    print(f"  {'suites':<11} {', '.join(sizes) or 'none'}")
    print(f"  {'cases':<11} {', '.join(record['cases'])}")
