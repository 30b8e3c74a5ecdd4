"""What a comparison found: a table as text, as HTML, and as flat records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import escape

from fuselab.model import Measurement
from fuselab.planning.plan import CEILING
from fuselab.records import frames, metrics
from fuselab.records.columns import NAMED
from fuselab.records.metrics import Record
from fuselab.report import text
from fuselab.report.build import build
from fuselab.report.html import ordered
from fuselab.report.sections import tables
from fuselab.report.sections.standing import Standings
from fuselab.report.sections.tables import (
    DIRECTIONS,
    UNKNOWN,
    Notes,
    column,
    number,
    percent,
    written,
)
from fuselab.report.view import Column, Table, Value, View

ISOLATION = (
    "Measured in process: a crash, a hang, a leak or a setting of this session is not kept apart; "
    "`fuselab run FILE` isolates."
)
_FIGURES = [NAMED[name] for name in ("max_abs_error", "max_ulp", "peak_bytes")]
_CLOCKS = {"cupti": " of kernel time", "wall": " of wall time"}
_STYLE = """
.fuselab table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.fuselab th, .fuselab td { padding: 0.2em 0.7em; text-align: left; white-space: nowrap; }
.fuselab .n { text-align: right; }
.fuselab thead th { vertical-align: bottom; border-bottom: 1px solid; }
.fuselab small { display: block; font-weight: normal; opacity: 0.7; }
.fuselab .best { font-weight: bold; }
.fuselab .scroll { overflow-x: auto; }
"""


@dataclass(frozen=True, repr=False)
class Results:
    """What became of every function: a notebook shows the table, `print` gives it as text.

    measurements  one a function and problem, with the raw samples; those of the implementation
                  "ceiling" are the memory's limit: a copy or addition of the same bytes
    environment   the machine and the software
    """

    measurements: tuple[Measurement, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def records(self) -> list[Record]:
        """One flat dict a measurement, with the columns of `fuselab export`."""
        return metrics.records(self.measurements)

    def to_pandas(self) -> Any:
        """Return the records as a pandas.DataFrame (extra `data`)."""
        return frames.to_pandas(self.records)

    def __repr__(self) -> str:
        return f"{text.to_terminal(self._view)}\n{ISOLATION}"

    def _repr_html_(self) -> str:
        loader = PackageLoader("fuselab.report.html")
        parts = Environment(
            loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
        ).get_template("parts.html")
        names = {"palette": {}, "label": tables.label, "ordered": ordered}
        grid = getattr(parts.make_module(names), "grid")  # noqa: B009 - a macro
        section = self._view.sections[0]
        shown = "".join(f"<h4>{escape(table.title)}</h4>{grid(table)}" for table in section.times)
        return (
            f'<div class="fuselab"><style>{_STYLE}</style><p>{escape(section.title)}</p>'
            f"{shown}<p><small>{escape(ISOLATION)}</small></p></div>"
        )

    @cached_property
    def _view(self) -> View:
        rows = [row for row in self.records if row["role"] != CEILING]
        standings = Standings(self.measurements, tables.implementations(rows))
        kinds = dict.fromkeys((row["direction"], row["dtype"]) for row in rows)
        shown = tuple(
            _table(
                f"{DIRECTIONS[direction]}, {dtype}",
                [r for r in rows if (r["direction"], r["dtype"]) == (direction, dtype)],
                standings,
            )
            for direction, dtype in kinds
        )
        view = build(self.measurements, [self.environment])
        section = replace(view.sections[0], title=self._title(rows), summary=(), times=shown)
        return replace(view, sections=(section,))

    def _title(self, rows: Sequence[Record]) -> str:
        known = (self.environment.get(name) for name in ("gpu", "cpu"))
        machine = next((str(name) for name in known if name), "")
        torch = self.environment.get("torch")
        parts = (
            *(rows[0]["device"], machine, torch and f"torch {torch}"),
            f"precision {rows[0]['precision']}",
        )
        return ", ".join(filter(None, parts))


def _table(title: str, rows: Sequence[Record], standings: Standings) -> Table:
    """Return the rows of one direction and dtype, the fastest of each case marked."""
    notes = Notes()
    clock = next((_CLOCKS.get(row["timer"], "") for row in rows if row["timer"]), "")
    names = ("case", "implementation", "status")
    numbers = ("time", "95 % interval", "GB/s", "of ceiling", "speedup")
    ran = "operators" if rows[0]["device"] == "cpu" else "kernels"
    columns = (
        *(Column(name, numeric=False) for name in names),
        *map(Column, numbers),
        *map(column, _FIGURES),
        Column(ran),
    )
    lines = tuple(_line(row, row["impl"] in standings.of(row).fastest, notes) for row in rows)
    units = f"; us{clock}, speedup over {_yardstick(rows)}"
    return Table(title + units, columns, lines, notes=notes.texts)


def _yardstick(rows: Sequence[Record]) -> str:
    return next((row["impl"] for row in rows if row["role"] == "eager"), "")


def _line(row: Record, fastest: bool, notes: Notes) -> tuple[Value, ...]:
    why = f"{row['status']}: {row['reason']}"
    good = row["status"] == "ok"
    figures = (
        *(written(metric, row[metric.name]) for metric in _FIGURES),
        UNKNOWN if row["launches"] is None else str(row["launches"]),
    )
    return (
        *(Value(row["case"]), Value(row["impl"])),
        Value(row["status"], "status", None if good else notes.number(why)),
        *_times(row, fastest),
        *(Value(figure) for figure in figures),
    )


def _times(row: Record, fastest: bool) -> tuple[Value, ...]:
    if row["median_us"] is None:
        return (Value(UNKNOWN),) * 5
    return (
        Value(_us(row["median_us"]), "best" if fastest else ""),
        Value(f"{_us(row['ci_low_us'])} to {_us(row['ci_high_us'])}"),
        Value(f"{row['gbps']:.4g}" if row["gbps"] else UNKNOWN),
        Value(percent(row["ceiling_share"])),
        Value(number(row["speedup_vs_eager"])),
    )


def _us(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:.1f}"
