"""What the report shows, as plain records; every output format draws these and nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Value:
    """One table cell: its text, its kind ("", "best", "status", "heat"), a tooltip, a footnote.

    heat    log2 of a speedup, for the heat map
    detail  a second, quieter line, which only a page shows
    """

    text: str
    kind: str = ""
    hint: str = ""
    note: int | None = None
    heat: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Column:
    """A table column; `detail` says what the name leaves open (unit, numerator, denominator).

    wide: holds long text that may wrap.
    """

    name: str
    detail: str = ""
    numeric: bool = True
    wide: bool = False

    @property
    def text(self) -> str:
        return f"{self.name} ({self.detail})" if self.detail else self.name


@dataclass(frozen=True)
class Table:
    """Rows of values under columns; footnote n of a value is `notes[n - 1]`.

    spans are (text, columns) pairs for a line above the header, the first column left out.
    order: that of the columns on a page, if another.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    lead: str = ""
    notes: tuple[str, ...] = ()
    spans: tuple[tuple[str, int], ...] = ()
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Series:
    """One line of a chart; points are (ideal bytes, GB/s)."""

    name: str
    role: str
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Chart:
    """Bandwidth over size for one dtype; peak is the GB/s of the fixed recipe."""

    title: str
    series: tuple[Series, ...]
    ceiling: Series
    peak: float | None = None


@dataclass(frozen=True)
class Section:
    """One operator and direction on one device: a table and a chart a dtype, one heat map."""

    title: str
    summary: tuple[str, ...]
    times: tuple[Table, ...]
    charts: tuple[Chart, ...]
    heat: Table | None


@dataclass(frozen=True)
class Tile:
    """A figure that stands at the top of the report."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Environment:
    """Where cells were measured, flattened to (name, value) pairs."""

    id: str
    cells: int
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class View:
    """The whole report; `notices` are what a reader must know before any figure."""

    title: str
    notices: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    tiles: tuple[Tile, ...]
    statuses: tuple[tuple[str, int], ...]
    sections: tuple[Section, ...]
    unmeasured: Table
    accuracy: Table
    costs: Table
    proofs: Table
    counters: Table
    environments: tuple[Environment, ...]
