"""From records to the report's tables of times and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from fuselab.metric import Metric
from fuselab.output.plain import counted
from fuselab.records import metrics
from fuselab.records.metrics import Record
from fuselab.report.sections.standing import NOISY, UNDECIDED, Standing, Standings, problem
from fuselab.report.view import Chart, Column, Series, Table, Value

UNKNOWN = "n/a"
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
# Ours are named by how they are written; alone, the name would read as the device.
_LABELS = {"cpu": "C++ (cpu)", "cuda": "CUDA (cuda)"}
ABOVE = (
    "over 100 %: the ceiling is a copy (or an addition) of as many bytes, timed beside the case, "
    "and no limit of the hardware; a kernel with a better mix of reads and writes, with data that "
    "the cache still has, or with less to do at its start passes it"
)
# Of more FLOPs a byte a case is bound by its products wherever it runs, and no copy is its ceiling.
PRODUCTS = 64
NO_OWN = "no own implementation has a good time"
NO_EAGER = "eager has no good time"
NO_CEILING = "the group's ceiling has no good time"
_RATE, _CEILING = Column("TFLOP/s", "best own"), Column("of ceiling", "ceiling / best own")
_FIRST = ("median_us", "speedup_vs_eager", "ceiling_share")
_POWERS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_ROLE_ORDER = ("eager", "baseline", "native", "rival", "ours")


class Notes:
    """Footnotes of one table: equal texts share a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers) + 1)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._numbers)


def implementations(rows: Iterable[Record]) -> tuple[str, ...]:
    """Return the implementations: eager, baselines, native, rivals, then ours."""
    roles = {row["impl"]: row["role"] for row in rows}
    place = {role: index for index, role in enumerate(_ROLE_ORDER)}
    return tuple(sorted(roles, key=lambda impl: place.get(roles[impl], len(place))))


def label(impl: str) -> str:
    """Return how text names an implementation."""
    return _LABELS.get(impl, impl)


def cases(rows: Iterable[Record]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row["case"] for row in rows))


def best(rows: Iterable[Record]) -> Record | None:
    """Return the record of the least good time, or None where none is good."""
    timed = [row for row in rows if row["status"] == "ok"]
    return min(timed, key=lambda row: row["median_us"], default=None)


def best_own(rows: Iterable[Record]) -> list[Record]:
    """Return the fastest record of our own implementations for each problem that has one."""
    problems: dict[tuple[str, ...], list[Record]] = {}
    for row in rows:
        if row["role"] == "ours":
            problems.setdefault(problem(row), []).append(row)
    return [found for own in problems.values() if (found := best(own))]


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def times(title: str, rows: Sequence[Record], standings: Standings) -> Table:
    """Return the seeds' table: a row a case, a column an implementation, in us, then speedup.

    On a page, which may be narrow, speedup comes first.
    """
    impls, notes = implementations(rows), Notes()
    products = heavy(rows)
    # Footnotes tell choices, but one of an operator that is bound by memory, which is in the lead.
    differ = products or len({row["chosen"] for row in rows if row["chosen"]}) > 1
    own = [impl for impl in impls if any(r["impl"] == impl and r["role"] == "ours" for r in rows)]
    columns = [Column("case", numeric=False), *(Column(impl, "us") for impl in impls)]
    if own:
        columns += [
            Column("speedup", "eager / best own"),
            _RATE if products else _CEILING,
        ]
    lines = []
    for case in cases(rows):
        found = {row["impl"]: row for row in rows if row["case"] == case}
        standing = standings.of(next(iter(found.values())))
        detail = _standing(standing, found)
        line = [Value(case, detail=detail)]
        line += [_time(found.get(impl), standing, notes, differ) for impl in impls]
        if own:
            line += _verdict(best(found[impl] for impl in own if impl in found), notes, products)
        lines.append(tuple(line))
    last = len(columns)
    order = (0, last - 2, last - 1, *range(1, last - 2)) if own else ()
    return Table(title, tuple(columns), tuple(lines), _lead(rows), notes.texts, order=order)


def _standing(standing: Standing, found: Mapping[str, Record]) -> str:
    """Return who is fastest, with the time, or that it is open."""
    if standing.open == UNDECIDED:
        return f"{' or '.join(map(label, standing.names))}?"
    if standing.open:
        return "noisy" if standing.open == NOISY else ""
    us = found[standing.names[0]]["median_us"]
    return f"{' = '.join(map(label, standing.names))} {us:.4g} us"


def chart(dtype: str, rows: Sequence[Record], ceilings: Sequence[Record]) -> Chart | None:
    """Return bandwidth over size of one dtype, or None where nothing has a bandwidth."""
    series = tuple(
        Series(impl, next(row["role"] for row in rows if row["impl"] == impl), points)
        for impl in implementations(rows)
        if (points := _points(row for row in rows if row["impl"] == impl))
    )
    if not series:
        return None
    shared = next((row for row in ceilings if row["gbps"] and row["peak_share"]), None)
    return Chart(
        dtype,
        series,
        Series("ceiling", "ceiling", _points(row for row in ceilings if row["status"] == "ok")),
        shared["gbps"] / shared["peak_share"] if shared else None,
    )


def titled(declared: Iterable[Metric]) -> list[Metric]:
    """Return the metrics that tables of cells show, the time and its ratios first."""
    first = {name: place for place, name in enumerate(_FIRST)}
    return sorted((m for m in declared if m.title), key=lambda m: first.get(m.name, len(first)))


def column(metric: Metric) -> Column:
    """Return the column of a metric."""
    return Column(metric.title, metric.detail)


def written(metric: Metric, value: Any) -> str:
    """Return a value of a metric as text."""
    return UNKNOWN if value is None else _FORMS[metric.form](value)


def size(nbytes: float | None) -> str:
    """Return a byte count in the largest binary unit that keeps it at least 1."""
    if nbytes is None:
        return UNKNOWN
    power = min(int(math.log2(nbytes)) // 10, 4) if nbytes > 0 else 0
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{nbytes / 1024**power:.1f}".removesuffix(".0") + f" {unit}"


def si(value: float, unit: str = "") -> str:
    """Return a number to four figures, with the letter of its power of ten and the unit."""
    power, letter = next((p for p in _POWERS if value >= p[0]), (1.0, ""))
    return f"{value / power:.4g} {letter}{unit}".rstrip()


def number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


# How a metric's values are written, by its form.
_FORMS: Mapping[str, Callable[[Any], str]] = {
    "us": "{:.3f}".format,
    "bytes": size,
    "si": si,
    "percent": percent,
    "whole": str,
    "number": number,
}


def tflops(row: Record) -> str:
    """Return the rate of a record that has a time and operations."""
    return f"{row['flops'] / row['median_us'] / 1e6:.0f}"


def heavy(rows: Iterable[Record]) -> bool:
    """Whether most cases whose operations are known are products rather than traffic."""
    known = [row for row in rows if row["flops"] and row["ideal_bytes"]]
    products = [row for row in known if row["flops"] > PRODUCTS * row["ideal_bytes"]]
    return 2 * len(products) > len(known)


def _time(row: Record | None, standing: Standing, notes: Notes, choices: bool) -> Value:
    if row is None:
        return Value("not run", "status")
    if row["median_us"] is None:
        text = f"{row['status']}: {row['reason']}"
        return Value(row["status"], "status", notes.number(text), cell=metrics.key(row))
    told = f"noisy: {row['reason']}" if row["status"] == "noisy" else ""
    if choices and row["chosen"] and not told:
        told = f"{row['impl']}: {row['chosen']}"
    note = notes.number(told) if told else None
    kind = "best" if row["impl"] in standing.fastest else ""
    return Value(f"{row['median_us']:.3f}", kind, note, cell=metrics.key(row))


def _verdict(own: Record | None, notes: Notes, products: bool) -> list[Value]:
    if own is None:
        return [Value(UNKNOWN, "status", notes.number(NO_OWN))] * 2
    speedup, share = own["speedup_vs_eager"], own["ceiling_share"]
    above = notes.number(ABOVE) if share and share > 1 else None
    beside = (
        Value(f"{speedup:.3f}") if speedup else Value(UNKNOWN, "status", notes.number(NO_EAGER))
    )
    if products and own["flops"]:
        return [beside, Value(tflops(own))]
    return [
        beside,
        Value(percent(share), note=above)
        if share
        else Value(UNKNOWN, "status", notes.number(NO_CEILING)),
    ]


def _lead(rows: Sequence[Record]) -> str:
    own = best_own(rows)
    parts = [counted(len(cases(rows)), "case")]
    if speedups := [row["speedup_vs_eager"] for row in own if row["speedup_vs_eager"]]:
        parts.append(f"{geometric_mean(speedups):.1f}x eager")
    shares = [row["ceiling_share"] for row in own if row["ceiling_share"]]
    if shares and not heavy(rows):
        parts.append(f"{percent(median(shares))} of the ceiling")
    if len(choices := {row["chosen"] for row in rows if row["chosen"]}) == 1:
        parts.append(f"auto: {choices.pop()}")
    return " · ".join(parts)


def _points(rows: Iterable[Record]) -> tuple[tuple[int, float], ...]:
    known = (row for row in rows if row["gbps"] and row["ideal_bytes"])
    return tuple(sorted((row["ideal_bytes"], row["gbps"]) for row in known))
