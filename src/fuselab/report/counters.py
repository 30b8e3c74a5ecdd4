"""What the slow counters found, beside the other metrics, and what they could not count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuselab.counters import UNITS
from fuselab.metrics import Record
from fuselab.report.tables import DIRECTIONS, UNKNOWN, counted, number, size
from fuselab.report.view import Column, Table, Value

NOT_MEASURED = "not measured"

_SHOWN: tuple[tuple[str, Column, Callable[[Any], str]], ...] = (
    ("median_us", Column("time", "us"), lambda us: f"{us:.3f}"),
    ("hot_us", Column("in cache", "us"), lambda us: f"{us:.3f}"),
    ("host_us", Column("host", "us"), lambda us: f"{us:.3f}"),
    ("dram_read_bytes", Column("read", "measured"), size),
    ("dram_write_bytes", Column("written", "measured"), size),
    ("ideal_bytes", Column("read + written", "model"), size),
    ("buffer_bytes", Column("buffers"), size),
    ("peak_bytes", Column("peak memory"), size),
    ("compile_cold_s", Column("compile cold", "s"), number),
    ("compile_warm_s", Column("warm", "s"), number),
    ("launches", Column("kernels"), str),
    ("max_abs_error", Column("max error", "absolute"), number),
    ("measured_flops", Column("FLOPs", "measured"), number),
    ("flops", Column("FLOPs", "model"), number),
    ("instructions", Column("instructions"), lambda value: f"{value:.4g}"),
    ("energy_j", Column("energy", "J"), number),
)
_CELL = ("op", "impl", "direction", "case", "dtype")


def table(rows: Sequence[Record]) -> Table:
    """Return one row for each cell that has been counted, whatever came of it."""
    names = ("operator", "implementation", "direction", "case", "dtype")
    return Table(
        "All metrics",
        (*(Column(name, numeric=False) for name in names), *(column for _, column, _ in _SHOWN)),
        tuple(
            (
                *(Value(DIRECTIONS.get(row[key]) or row[key]) for key in _CELL),
                *(
                    Value(UNKNOWN if row[key] is None else text(row[key]))
                    for key, _, text in _SHOWN
                ),
            )
            for row in rows
            if _was_counted(row)
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


def _was_counted(row: Record) -> bool:
    return bool(row["not_counted"]) or any(row[name] is not None for name in UNITS)
