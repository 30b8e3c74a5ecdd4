"""Calls that other tools recorded: torch.profiler's traces, TraceLens's tables, flashinfer's."""

from __future__ import annotations

import csv
import json
import re
from ast import literal_eval
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuselab.planning.plan import PlanError
from fuselab.scan.traces import calls
from fuselab.scan.traces.trace import Array, Event, dense
from fuselab.worker.operators.recorded import Recorded

# Columns of TraceLens's unified_perf_summary.csv and ops_unique_args.csv, as a trace names them.
_COLUMNS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_COUNT, _SUMS = "operation_count", ("Kernel Time (µs)_sum", "total_direct_kernel_time_sum")
# Definitions of flashinfer-bench by the beginning of their names: our operator, its inputs by
# theirs, and what else is given.
_DEFINITIONS: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, Any]]] = {
    "fused_add_rmsnorm_": (
        "add_rms_norm",
        {"x": "hidden_states", "residual": "residual", "weight": "weight"},
        {},
    ),
    "gemma_rmsnorm_": (
        "rms_norm",
        {"x": "hidden_states", "weight": "weight"},
        {"weight_offset": 1.0},
    ),
    "rmsnorm_": ("rms_norm", {"x": "hidden_states", "weight": "weight"}, {}),
}
_EPS = re.compile(r"\bEPS\s*=\s*([0-9.eE+-]+)")


@dataclass(frozen=True)
class Foreign:
    """A call that another tool recorded, and the us that all of its kind took there; 0: unknown."""

    call: Recorded
    us: float = 0.0


def read(path: str) -> list[Foreign]:
    """Return the calls of our operators, or of what is among them, in a table of another tool.

    FILE.csv is TraceLens's, FILE.jsonl flashinfer-bench's workloads. Raises PlanError for a file
    that is neither, or has no such call.
    """
    readers = {".csv": _tracelens, ".jsonl": _flashinfer}
    reader = readers.get(Path(path).suffix)
    if reader is None:
        raise PlanError(f"--from: got {path!r}, expected a trace (.json, .json.gz), .csv or .jsonl")
    try:
        found = list(reader(Path(path)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(f"--from: {path}: {type(error).__name__}: {error}") from error
    if not found:
        raise PlanError(f"--from: {path}: it has no call of an operator that ours can serve")
    return found


def is_trace(path: str) -> bool:
    """Return whether a file is a trace by its name."""
    return path.endswith((".json", ".json.gz"))


def _tracelens(path: Path) -> Iterator[Foreign]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        missing = [name for name in ("name", *_COLUMNS) if name not in (rows.fieldnames or ())]
        if missing:
            raise PlanError(
                f"--from: {path}: no column {missing[0]!r}, expected a table of TraceLens"
            )
        for row in rows:
            args = {name: literal_eval(row[name]) for name in _COLUMNS if row[name]}
            event = Event(row["name"], "cpu_op", 0.0, 0.0, None, args)
            call = calls.call_of(event) if event.name in calls.ATEN else ""
            if isinstance(call, Recorded):
                us = next((float(row[name]) for name in _SUMS if row.get(name)), 0.0)
                yield Foreign(replace(call, count=float(row.get(_COUNT) or 1)), us)


def _flashinfer(path: Path) -> Iterator[Foreign]:
    for line in filter(str.strip, path.read_text(encoding="utf-8").splitlines()):
        said = json.loads(line)
        known = next((k for k in _DEFINITIONS if said["definition"].startswith(k)), None)
        if known is None:
            continue
        definition = _definition(path, said["definition"])
        axes = {n: a["value"] for n, a in definition["axes"].items() if a["type"] == "const"}
        axes |= said["workload"]["axes"]
        op, names, more = _DEFINITIONS[known]
        given = dict(more) | {
            ours: _array(definition["inputs"][theirs], axes) for ours, theirs in names.items()
        }
        if eps := _EPS.search(definition.get("reference", "")):
            given["eps"] = float(eps[1])
        call = calls.recorded(op, given)
        if isinstance(call, Recorded):
            yield Foreign(call)


def _definition(path: Path, name: str) -> Any:
    """Return a definition: beside the workloads, or in the data set's folder of definitions."""
    places = [path.with_name(f"{name}.json")]
    for folder in path.absolute().parents:
        places += sorted((folder / "definitions").glob(f"*/{name}.json"))
    for place in places:
        if place.is_file():
            return json.loads(place.read_text(encoding="utf-8"))
    raise PlanError(f"--from: {path}: no definition {name}.json beside it or in definitions/")


def _array(given: Mapping[str, Any], axes: Mapping[str, int]) -> Array:
    shape = tuple(int(axes.get(axis, axis)) for axis in given["shape"])
    return Array(shape, dense(shape), given["dtype"])
