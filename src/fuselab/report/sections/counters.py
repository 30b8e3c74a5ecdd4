"""What the slow counters found, beside the other metrics, and what they could not count."""

from __future__ import annotations

from collections.abc import Sequence

from fuselab.metric import Metric
from fuselab.output.plain import counted
from fuselab.records.metrics import Record
from fuselab.report.sections.tables import DIRECTIONS, column, titled, written
from fuselab.report.view import Column, Table, Value

NOT_MEASURED = "not measured"

_CELL = ("op", "impl", "direction", "case", "dtype")


def table(rows: Sequence[Record], declared: Sequence[Metric]) -> Table:
    """Return one row for each cell that has been counted, whatever came of it."""
    counted = [row for row in rows if _was_counted(row, declared)]
    shown = [m for m in titled(declared) if any(row[m.name] is not None for row in counted)]
    names = ("operator", "implementation", "direction", "case", "dtype")
    return Table(
        "All metrics",
        (*(Column(name, numeric=False) for name in names), *map(column, shown)),
        tuple(
            (
                *(Value(DIRECTIONS.get(row[key]) or row[key]) for key in _CELL),
                *(Value(written(metric, row[metric.name])) for metric in shown),
            )
            for row in counted
        ),
    )


def not_measured(rows: Sequence[Record]) -> list[str]:
    """Return what could not be counted, a line for each reason, the most frequent first."""
    cells: dict[str, int] = {}
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        for line in row["not_counted"].splitlines():
            known, _, reason = line.partition(": ")
            cells[reason] = cells.get(reason, 0) + 1
            names.setdefault(reason, {}).update(dict.fromkeys(known.split(", ")))
    return [
        f"{', '.join(names[reason])} ({reason}), {counted(cells[reason], 'cell')}"
        for reason in sorted(cells, key=lambda reason: -cells[reason])
    ]


def _was_counted(row: Record, declared: Sequence[Metric]) -> bool:
    counts = (row[metric.name] for metric in declared if metric.of is None)
    return bool(row["not_counted"]) or any(count is not None for count in counts)
