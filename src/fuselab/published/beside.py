"""Ratios of a published table beside those of runs, and times where times were published."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fuselab.model import Measurement, Status
from fuselab.published.tables import Published, Table, Value
from fuselab.statistics import stats

UNLABELLED = "its source does not say which time is above which"
# Nearer to 1 neither side is the faster one.
EQUAL = 0.03

_Times = Mapping[tuple[str, ...], float]


@dataclass(frozen=True)
class Line:
    """A published table beside one run, for one pair of implementations.

    n         cells that both have
    published, measured  geometric means of above's time over below's in these
    agree     share of the cells in which the same side is faster, or none
    faster    geometric mean of published over measured times of `below`; None of ratios
    reason    why nothing is compared, else ""
    """

    op: str
    direction: str
    dtype: str
    title: str
    run: str
    above: str = ""
    below: str = ""
    n: int = 0
    published: float | None = None
    measured: float | None = None
    agree: float | None = None
    faster: float | None = None
    reason: str = ""


def lines(published: Published, runs: Sequence[tuple[str, Sequence[Measurement]]]) -> list[Line]:
    """Return a line for each table, pair of implementations and run."""
    known = [(name, _times(measured)) for name, measured in runs]
    return [
        line
        for table in published.tables
        for pair in _pairs(table)
        for name, times in known
        for line in [_line(table, pair, name, times)]
    ]


def ratio(table: Table, value: Value, times: _Times) -> float | None:
    """Return what a run has in the place of a published number."""
    above, below = (_us(table, value.case, impl, times) for impl in (value.above, value.below))
    return above / below if above and below else None


def _pairs(table: Table) -> list[tuple[str, str]]:
    return list(dict.fromkeys((v.above, v.below) for v in table.numbers())) or [("", "")]


def _line(table: Table, pair: tuple[str, str], run: str, times: _Times) -> Line:
    of = (table.op, table.direction, table.dtype, table.title, run)
    if pair == ("", ""):
        return Line(*of, reason=UNLABELLED)
    mine = [v for v in table.numbers() if (v.above, v.below) == pair and v.ratio]
    both = [(v, r) for v in mine if (r := ratio(table, v, times))]
    if not both:
        return Line(*of, *pair, reason=_lacking(table, pair, mine, times))
    theirs, ours = [v.ratio or 1.0 for v, _ in both], [r for _, r in both]
    us = [(v.us, _us(table, v.case, v.below, times)) for v, _ in both]
    return Line(
        *(*of, *pair, len(both), _mean(theirs), _mean(ours)),
        sum(_side(a) == _side(b) for a, b in zip(theirs, ours, strict=True)) / len(both),
        _mean([a / b for a, b in us if a and b]) if table.of_times else None,
    )


def _lacking(table: Table, pair: tuple[str, str], mine: Sequence[Value], times: _Times) -> str:
    """Return what a run would need."""
    cases = {v.case for v in mine}
    of_op = [key for key in times if key[0] == table.op]
    if not of_op:
        return f"the run has no {table.op}"
    kind = [key for key in of_op if key[1:3] == (table.direction, table.dtype) and key[3] in cases]
    if not kind:
        return f"the run has none of its cases, {table.direction} in {table.dtype}"
    missing = [impl for impl in pair if all(key[4] != impl for key in kind)]
    return f"the run has no {' and no '.join(missing) or 'case with both'} in its cases"


def _times(measured: Iterable[Measurement]) -> _Times:
    return {
        (m.cell.op, m.cell.direction, m.cell.dtype, m.cell.case, m.cell.impl): stats.median(
            m.samples_us
        )
        for m in measured
        if m.status is Status.OK and m.cell.layout == "contiguous"
    }


def _us(table: Table, case: str, impl: str, times: _Times) -> float | None:
    return times.get((table.op, table.direction, table.dtype, case, impl))


def _side(ratio: float) -> int:
    return 0 if abs(ratio - 1) <= EQUAL else 1 if ratio > 1 else -1


def _mean(values: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None
