"""Two runs beside each other: the verdicts of `fuselab compare`, and what else differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten

from fuselab.model import Cell, Measurement
from fuselab.planning.plan import CEILING
from fuselab.report.sections.tables import DIRECTIONS, UNKNOWN, Notes
from fuselab.report.shown import Shown
from fuselab.report.view import Column, Table, Value
from fuselab.statistics.comparison import (
    Comparison,
    Summary,
    Verdict,
    compare,
    differences,
    pair,
    summary,
)

_HEAD = ("operator", "implementation", "direction", "case", "dtype")
_LONGEST = 120


@dataclass(frozen=True)
class Versus:
    """The run B beside A.

    changed  the cells whose verdict is not "same", the largest change first
    facts    (name, A's value, B's value) of what differs between their environments
    """

    a: str
    b: str
    summary: Summary
    changed: Table
    facts: tuple[tuple[str, str, str], ...]


def compared(a: Shown, b: Shown) -> Versus:
    """Compare two runs, cell by cell, the ceilings left out."""
    pairs = [one for one in pair(_cells(a), _cells(b)) if one.a and one.b]
    asked = [one for one in pairs if not one.unsupported]
    found = compare(asked)
    return Versus(
        a.name,
        b.name,
        summary(found),
        _changed(a.name, b.name, found),
        tuple(differences(a.environments, b.environments)),
    )


def _cells(run: Shown) -> list[Measurement]:
    return [m for m in run.measured if CEILING not in (m.cell.op, m.cell.impl)]


def _changed(a: str, b: str, found: Sequence[Comparison]) -> Table:
    notes = Notes()
    apart = [one for one in found if one.verdict is not Verdict.SAME]
    apart.sort(key=lambda one: (one.verdict is Verdict.UNKNOWN, -abs((one.ratio or 1) - 1)))
    columns = (
        *(Column(name, numeric=False) for name in _HEAD),
        *(Column(f"time {name}", "us") for name in (a, b)),
        Column(f"{b} / {a}"),
        Column("95 % interval", "of the ratio"),
        Column("verdict", f"on {b}", numeric=False),
    )
    rows = tuple(
        (
            *map(Value, (one.op, one.impl_a, DIRECTIONS.get(one.direction, one.direction))),
            *map(Value, (one.case, one.dtype)),
            *(_time(name, us, one) for name, us in ((a, one.a_us), (b, one.b_us))),
            Value(UNKNOWN if one.ratio is None else f"{one.ratio:.3f}"),
            Value(UNKNOWN if one.low is None else f"{one.low:.3f} to {one.high:.3f}"),
            Value(str(one.verdict), note=notes.number(_short(one.reason)) if one.reason else None),
        )
        for one in apart
    )
    title = "Cells that changed, or of which nothing can be said"
    return Table(title, columns, rows, notes=notes.texts)


def _time(name: str, us: float | None, one: Comparison) -> Value:
    """Return a time that leads to its cell in the run of that name."""
    cell = Cell(one.op, one.impl_a, one.direction, one.case, one.dtype, one.layout, one.device)
    return Value(UNKNOWN if us is None else f"{us:.3f}", cell=f"{name}:{cell.key}")


def _short(reason: str) -> str:
    """Return the beginning of a reason: the cell has the whole, with addresses and sizes in it."""
    return shorten(reason, _LONGEST, placeholder=" ...")
