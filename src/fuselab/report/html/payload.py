"""What the page's script draws: the cells of all runs as columns, texts told once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fuselab.metric import Metric
from fuselab.model import Measurement
from fuselab.records import columns
from fuselab.records.metrics import Record
from fuselab.report.pictures.axes import place
from fuselab.report.pictures.plots import colors
from fuselab.report.sections import tables
from fuselab.report.shown import Beside, Shown
from fuselab.statistics import stats

# Figures that no table has, and the script draws.
_DRAWN = ("ci_low_us", "ci_high_us", "samples", "sm_mhz", "ceiling_gbps")
# Of one cell alone, and in a column already.
_NOT_SHARED = ("sm_mhz", "temperature_c", "kernels", "launches", "copies", "chosen", "version")
# Of the samples, how many a page of many cells keeps, and of one cell at most and at least.
_SAMPLES, _MOST, _LEAST = 200_000, 100, 16


def payload(runs: Sequence[Shown], beside: Sequence[Beside] = ()) -> dict[str, Any]:
    """Return the runs as what JSON can hold; the same runs give the same.

    keys     the name of each cell, which its address in the page ends with
    texts    by column: (the distinct texts, and for each cell which)
    numbers  by column: for each cell a number, null for unknown
    metrics  the columns that tables of cells have: heading, detail, unit and form of each
    samples  for each cell the order statistics that are kept, in thousandths of its median from it,
             each as the step from the one before
    beside   what others published, by its name: the ratios of the operators that the runs have
    places   by operator and case: where it stands in a grid of sizes
    """
    cells = [(run, m) for run, shown in enumerate(runs) for m in shown.measured]
    rows = [row for shown in runs for row in shown.view.records]
    proofs = [json.dumps(_proof(m), sort_keys=True) for _, m in cells]
    kept = max(_LEAST, min(_MOST, _SAMPLES // max(1, len(cells))))
    declared = columns.of(m for _, m in cells)
    titled = tables.titled(declared)
    texts = [metric.name for metric in declared if metric.kind is str]
    numbers = [*_DRAWN, *(metric.name for metric in titled)]
    return {
        "runs": [{"name": shown.name, "title": shown.view.title} for shown in runs],
        "keys": keys(runs),
        "run": [run for run, _ in cells],
        "texts": {
            **{name: _shared(str(row[name] or "") for row in rows) for name in texts},
            "proof": _shared(proofs),
            "code": _shared(m.code for _, m in cells),
        },
        "numbers": {name: [_number(row.get(name)) for row in rows] for name in numbers},
        "metrics": [_heading(metric) for metric in titled],
        "samples": [_steps(m.samples_us, kept) for _, m in cells],
        "places": _places(rows),
        "beside": {one.name: {"about": one.about, "ratios": _kinds(one, rows)} for one in beside},
        "colors": colors(list(tables.implementations(rows))),
        "labels": {impl: tables.label(impl) for impl in tables.implementations(rows)},
        "environments": [{one.id: one.facts for one in shown.view.environments} for shown in runs],
    }


def _heading(metric: Metric) -> dict[str, str]:
    return {name: getattr(metric, name) for name in ("name", "title", "detail", "unit", "form")}


def keys(runs: Sequence[Shown]) -> list[str]:
    """Return the names of all cells, behind their run's name where there are several."""
    several = len(runs) > 1
    return [
        f"{shown.name}:{m.cell.key}" if several else m.cell.key
        for shown in runs
        for m in shown.measured
    ]


def _proof(measurement: Measurement) -> Mapping[str, str]:
    """Return what of the proof cells may have in common, as text: JSON has no NaN."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in measurement.proof.known().items()
        if name not in _NOT_SHARED
    }


def _shared(texts: Iterable[str]) -> tuple[list[str], list[int]]:
    known: dict[str, int] = {}
    which = [known.setdefault(text, len(known)) for text in texts]
    return list(known), which


def _number(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() and abs(value) < 1e9 else float(f"{value:.5g}")
    return value


def _steps(samples: Sequence[float], most: int) -> list[int]:
    """Return at most so many order statistics, evenly apart, the least and the most among them."""
    if not samples:
        return []
    inside, middle = sorted(samples), stats.median(samples)
    last = len(inside) - 1
    count = min(most, len(inside))
    chosen = [inside[round(last * i / max(1, count - 1))] for i in range(count)]
    parts = [round(1000 * (us / middle - 1)) if middle else 0 for us in chosen]
    return [parts[0], *(b - a for a, b in pairwise(parts))]


def _kinds(beside: Beside, rows: Sequence[Record]) -> dict[str, Mapping[str, float]]:
    ran = {f"{row['op']} {row['direction']} {row['dtype']}" for row in rows}
    return {kind: found for kind, found in beside.ratios.items() if kind in ran}


def _places(rows: Sequence[Record]) -> dict[str, dict[str, tuple[str, str, str, str, str]]]:
    """Return (what is alike, the row's and the column's axis, the row, the column) of each case."""
    found: dict[str, dict[str, tuple[str, str, str, str, str]]] = {}
    for op, case in dict.fromkeys((row["op"], row["case"]) for row in rows):
        if at := place(op, case):
            names = (at.alike, at.axes.row, at.axes.column, at.row, str(at.column))
            found.setdefault(op, {})[case] = names
    return found
