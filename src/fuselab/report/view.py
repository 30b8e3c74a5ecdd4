"""What the report shows, as plain records; every output format draws these and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from fuselab.records.metrics import Record


@dataclass(frozen=True)
class Value:
    """One table cell: its text, its kind ("", "best", "status"), a footnote.

    detail  a second, quieter line, which only a page shows
    cell    the key of the cell whose time it is, which a page leads to
    """

    text: str
    kind: str = ""
    note: int | None = None
    detail: str = ""
    cell: str = ""


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
    """One operator and direction on one device: a table of times a dtype."""

    title: str
    summary: tuple[str, ...]
    times: tuple[Table, ...]


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
    """The whole report; `notices` are what a reader must know before any figure.

    overview: of many sections, a line each; None where their sentences are read as soon.
    records: of all cells, ceilings among them, in the order that they were given in.
    """

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
    overview: Table | None = None
    records: tuple[Record, ...] = ()
