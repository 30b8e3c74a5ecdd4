"""The tables below the times: what has no number, accuracy, cost, proof."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median

from fuselab.records.columns import NAMED
from fuselab.records.metrics import Record
from fuselab.report.sections.tables import (
    DIRECTIONS,
    UNKNOWN,
    Notes,
    column,
    implementations,
    number,
    percent,
    written,
)
from fuselab.report.view import Column, Table, Value

GRADIENTS = (
    "not judged in ULP: gradients are held to the error over eps x their largest value, because an "
    "element where a sum cancels is far smaller than its terms, and off by many ULP of its own"
)


def unmeasured(rows: Sequence[Record]) -> Table:
    """Return what has no number, or a noisy one, and why."""
    counts = Counter(
        (row["op"], row["impl"], row["status"], row["reason"])
        for row in rows
        if row["status"] != "ok"
    )
    names = ("operator", "implementation", "status", "reason")
    return Table(
        "Cells without a good number",
        (*(Column(name, numeric=False, wide=name == "reason") for name in names), Column("cells")),
        tuple(
            (*(Value(text) for text in key), Value(str(count)))
            for key, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ),
    )


def accuracy(rows: Sequence[Record]) -> Table:
    """Return the worst error against fp64 of each implementation, direction and dtype."""
    numbers = ("max_abs_error", "rms_error", "max_ulp", "max_eps", "eager_ratio")
    notes = Notes()
    judged = [row for row in rows if row["max_abs_error"] is not None]
    return _by_implementation(
        "Accuracy against fp64, worst case",
        judged,
        [column(NAMED[name]) for name in numbers],
        lambda part: [_error(name, part, notes) for name in numbers],
        notes,
    )


def _error(key: str, part: Sequence[Record], notes: Notes) -> Value:
    worst = _worst(row[key] for row in part)
    if key != "max_ulp" or part[0]["direction"] != "bwd":
        return worst
    return replace(worst, kind="status", note=notes.number(GRADIENTS))


def costs(rows: Sequence[Record]) -> Table:
    """Return host time (median over the cases) and memory of the largest case."""
    largest_case = [NAMED[n] for n in ("ideal_bytes", "buffer_bytes", "peak_bytes", "copies")]
    columns = [
        Column("host time", "us per call, median"),
        Column("in cache", "time / cold time, median"),
        Column("largest case", numeric=False),
        *map(column, largest_case),
    ]

    def line(part: Sequence[Record]) -> list[Value]:
        good = [row for row in part if row["status"] == "ok"]
        host = [row["host_us"] for row in good if row["host_us"] is not None]
        hot = [row["hot_us"] / row["median_us"] for row in good if row["hot_us"] is not None]
        largest = max(part, key=lambda row: row["ideal_bytes"] or 0)
        return [
            Value(f"{median(host):.2f}" if host else UNKNOWN),
            Value(percent(median(hot)) if hot else UNKNOWN),
            Value(largest["case"]),
            *(Value(written(metric, largest[metric.name])) for metric in largest_case),
        ]

    timed = [row for row in rows if row["median_us"] is not None]
    return _by_implementation("Host time and memory", timed, columns, line)


def proofs(rows: Sequence[Record]) -> Table:
    """Return what ran, one line for each distinct proof."""
    counted = ("launches", "copies", "graphs", "breaks", "recompiles")
    keys = ("op", "impl", "direction", "dtype", "kernels", *counted, "version")
    counts = Counter(
        tuple(row[key] for key in keys) for row in rows if row["median_us"] is not None
    )
    names = ("operator", "implementation", "direction", "dtype", "kernels")
    return Table(
        "Proof",
        (
            *(Column(name, numeric=False, wide=name == "kernels") for name in names),
            *(Column(name) for name in counted),
            Column("cells"),
        ),
        tuple(
            (
                Value(key[0]),
                Value(f"{key[1]} ({key[-1]})" if key[-1] else key[1]),
                Value(DIRECTIONS.get(key[2], key[2])),
                Value(key[3]),
                Value(key[4] or UNKNOWN),
                *(Value(number(value)) for value in key[5:-1]),
                Value(str(count)),
            )
            for key, count in counts.items()
        ),
    )


def _worst(values: Iterable[float | None]) -> Value:
    known = [value for value in values if value is not None]
    bad = next((value for value in known if math.isnan(value)), None)
    return Value(number(max(known, default=None) if bad is None else bad))


def _by_implementation(
    title: str,
    rows: Sequence[Record],
    columns: Sequence[Column],
    line: Callable[[Sequence[Record]], list[Value]],
    notes: Notes | None = None,
) -> Table:
    keys = ("op", "direction", "dtype", "impl")
    parts: dict[tuple[str, ...], list[Record]] = {}
    for impl in implementations(rows):
        for row in (row for row in rows if row["impl"] == impl):
            parts.setdefault(tuple(row[key] for key in keys), []).append(row)
    order = {
        key: index
        for index, key in enumerate(
            dict.fromkeys(tuple(row[name] for name in keys[:3]) for row in rows)
        )
    }
    names = ("operator", "direction", "dtype", "implementation")
    lines = tuple(
        (
            Value(key[0]),
            Value(DIRECTIONS.get(key[1], key[1])),
            Value(key[2]),
            Value(key[3]),
            *line(part),
            Value(str(len(part))),
        )
        for key, part in sorted(parts.items(), key=lambda item: order[item[0][:3]])
    )
    head = (*(Column(name, numeric=False) for name in names), *columns, Column("cases"))
    return Table(title, head, lines, notes=notes.texts if notes else ())
