"""Ratios over a grid of sizes, one for each operator, direction, dtype, device and third size."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from fuselab.model import Measurement
from fuselab.output.files import replace
from fuselab.output.plain import plain
from fuselab.planning.plan import CEILING
from fuselab.records import metrics
from fuselab.records.metrics import Record
from fuselab.report.pictures import plots
from fuselab.report.pictures.axes import Axes, place
from fuselab.report.sections import tables
from fuselab.report.sections.standing import Standings
from fuselab.report.text import escape
from fuselab.statistics.comparison import Verdict

OURS = "ours"
RATIOS = (("eager", OURS), ("compile", OURS), ("eager", "compile"))
_OF_SPEEDS = "Speed, as the study has it: above 100 % the first is faster."
_TIMES = {"cupti": "kernel time with a cold cache", "wall": "wall time with a cold cache"}
_SUMMARY = (
    *("operator", "direction", "dtype", "device", "of", "cells"),
    *("eager / ours", "compile / ours", "compile / ours, from 4 MB"),
    *("share of the ceiling, from 256 MB", "compile / ours on the host, below 1 MB"),
    "slower than a rival",
)

Key = tuple[str, str, str, str, str]
Size = tuple[str, int]
Times = Mapping[str, Record]


class NoGrid(ValueError):
    """A run that has nothing to draw a grid of; the text says why."""


@dataclass(frozen=True)
class Grid:
    """One operator, direction, dtype, device and `axes.Place.alike`: the good records of each size
    by implementation.

    The fastest own implementation is there as `ours` too. slower: sizes at which it is slower than
    another, by compare's verdict. failed: the status of what has no good time.
    """

    key: Key
    axes: Axes
    cells: Mapping[Size, Times]
    slower: tuple[Size, ...]
    failed: Mapping[Size, Mapping[str, str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its files."""
        op, direction, dtype, device, alike = self.key
        parts = (op, direction, dtype, *((device,) if device != "cuda:0" else ()), alike)
        return re.sub(r"[^\w.-]+", "-", "-".join(filter(None, parts)))

    @property
    def title(self) -> str:
        return " ".join(filter(None, self.key))

    @property
    def sizes(self) -> tuple[list[str], list[int]]:
        """The rows and the columns."""
        known = {*self.cells, *self.failed}
        rows = sorted({m for m, _ in known}, key=lambda m: (math.prod(map(int, m.split("x"))), m))
        return rows, sorted({n for _, n in known})

    def ratio(self, size: Size, above: str, below: str) -> float:
        """Return the time of one over the time of another, NaN where one has none."""
        return _ratio(self.cells.get(size, {}), above, below)

    def knows(self, above: str, below: str) -> bool:
        return any(not math.isnan(self.ratio(size, above, below)) for size in self.cells)


def write(measured: Sequence[Measurement], folder: Path) -> list[Path]:
    """Write a page of tables and a heat map for each grid, and summary.md; NoGrid if none."""
    grids = build(measured)
    lines = [_line(_SUMMARY), "|---" * len(_SUMMARY) + "|", *map(_summary, grids)]
    written = [replace(folder / "summary.md", "\n".join(lines) + "\n")]
    for grid in grids:
        written.append(replace(folder / f"{grid.name}.md", _page(grid)))
        above = "compile" if grid.knows("compile", OURS) else "eager"
        if grid.knows(above, OURS):
            written.append(replace(folder / f"{grid.name}.svg", _heat_map(grid, above)))
    return written


def build(measured: Sequence[Measurement]) -> list[Grid]:
    """Return the grids of a run, of cases that are named by their sizes (128x1024, 4x128x1024)."""
    rows = [row for row in metrics.records(measured) if place(row["op"], row["case"])]
    if not rows:
        raise NoGrid("no case is named by its sizes, like those of the suite fusion (128x1024)")
    good = [row for row in rows if row["status"] == "ok"]
    own = tables.best_own(good)
    if not own:
        noisy = sum(row["status"] == "noisy" for row in rows)
        raise NoGrid(f"no own implementation has a good time: {noisy} of {len(rows)} are noisy")
    standings = Standings(measured, tables.implementations(rows))
    parts: dict[Key, dict[Size, dict[str, Record]]] = {}
    failed: dict[Key, dict[Size, dict[str, str]]] = {}
    for row in rows:
        key, size = _place(row)
        if row["status"] == "ok":
            parts.setdefault(key, {}).setdefault(size, {})[row["impl"]] = row
        else:
            failed.setdefault(key, {}).setdefault(size, {})[row["impl"]] = row["status"]
    for row in own:
        key, size = _place(row)
        parts[key][size][OURS] = row
    return [
        Grid(
            *(key, _axes_of(next(iter(next(iter(cells.values())).values()))), cells),
            tuple(size for size, times in cells.items() if _slower(times, standings)),
            failed.get(key, {}),
        )
        for key, cells in sorted(parts.items())
        if any(OURS in times for times in cells.values())
    ]


def _place(row: Record) -> tuple[Key, Size]:
    found = place(row["op"], row["case"])
    assert found
    key = (row["op"], row["direction"], row["dtype"], row["device"], found.alike)
    return key, (found.row, found.column)


def _axes_of(row: Record) -> Axes:
    found = place(row["op"], row["case"])
    assert found
    return found.axes


def _slower(times: Times, standings: Standings) -> bool:
    ours = times.get(OURS)
    rivals = [name for name, row in times.items() if row["role"] not in ("ours", CEILING)]
    beside = [standings.speedup(name, ours) for name in rivals] if ours else []
    return any(found is not None and found[0] is Verdict.SLOWER for found in beside)


def _us(times: Times, impl: str, column: str = "median_us") -> float:
    value = times[impl][column] if impl in times else None
    return math.nan if value is None else float(value)


def _ratio(times: Times, above: str, below: str, column: str = "median_us") -> float:
    divisor = _us(times, below, column)
    return _us(times, above, column) / divisor if divisor else math.nan


def _page(grid: Grid) -> str:
    timer = next(row["timer"] for times in grid.cells.values() for row in times.values())
    head = f"# {escape(grid.title)}: {_TIMES.get(timer, 'times')}"
    found = [_table(grid, *pair) for pair in RATIOS if grid.knows(*pair)]
    found = found or ["No other implementation has a good time."]
    known = [pair for pair in grid.axes.speeds if grid.knows(*pair)]
    of_compile = any("compile" in pair for pair in known)
    told = [_OF_SPEEDS + " What it calls triton is compile here." * of_compile] if known else []
    return "\n\n".join([head, *found, *told, *(_speeds(grid, *pair) for pair in known)]) + "\n"


def _table(grid: Grid, above: str, below: str) -> str:
    """Return ratios as a Markdown table, empty where one of the two has no good time."""

    def value(size: Size) -> str:
        ratio = grid.ratio(size, above, below)
        return "" if math.isnan(ratio) else f"{ratio:.2f}"

    return _lines(grid, f"{above} / {below}", value)


def _speeds(grid: Grid, fast: str, slow: str) -> str:
    """Return how fast one is over another, as the study has it; else the status of what failed."""

    def value(size: Size) -> str:
        ratio = grid.ratio(size, slow, fast)
        if not math.isnan(ratio):
            return f"{ratio:.2%}"
        failed = grid.failed.get(size, {})
        return ", ".join(f"{impl} {failed[impl]}" for impl in (slow, fast) if impl in failed)

    return _lines(grid, f"{fast} / {slow}", value)


def _lines(grid: Grid, title: str, value: Callable[[Size], str]) -> str:
    rows, columns = grid.sizes
    head = [f"{grid.axes.row} \\ {grid.axes.column}", *map(str, columns)]
    lines = [_line(head), "|---" * len(head) + "|"]
    lines += [_line([m, *(value((m, n)) for n in columns)]) for m in rows]
    return "\n".join([title, "", *lines])


def _summary(grid: Grid) -> str:
    known = [times for times in grid.cells.values() if OURS in times]
    big = [t for t in known if _us(t, OURS, "ideal_bytes") >= 4e6]
    huge = [t for t in known if _us(t, OURS, "ideal_bytes") >= 256e6]
    small = [t for t in known if _us(t, OURS, "ideal_bytes") < 1e6]
    shares = [t[OURS]["ceiling_share"] for t in huge if t[OURS]["ceiling_share"]]
    slower = " ".join(f"{m}x{n}" for m, n in grid.slower)
    return _line(
        (
            *map(escape, grid.key),
            str(len(known)),
            _mean(_ratio(t, "eager", OURS) for t in known),
            _mean(_ratio(t, "compile", OURS) for t in known),
            _mean(_ratio(t, "compile", OURS) for t in big),
            f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %" if shares else "",
            _mean(_ratio(t, "compile", OURS, "host_us") for t in small),
            f"{len(grid.slower)}: {slower}" if slower else "0",
        )
    )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _mean(values: Iterable[float]) -> str:
    known = [value for value in values if value > 0]
    return f"{tables.geometric_mean(known):.2f}" if known else ""


def _heat_map(grid: Grid, above: str) -> str:
    """Return above / ours over both axes; white where both are equal."""
    rows, columns = grid.sizes
    values = [[_ratio(grid.cells.get((m, n), {}), above, OURS) for n in columns] for m in rows]
    with rc_context(plots.STYLE):
        size = (2 + 0.45 * len(columns), 1.6 + 0.36 * len(rows))
        figure = Figure(figsize=size, layout="constrained")
        axes: Any = figure.subplots()
        scale = TwoSlopeNorm(1.0, vmin=0.5, vmax=3.0)
        image = axes.imshow(values, cmap="RdYlGn", norm=scale, origin="lower", aspect="auto")
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                if not math.isnan(value):
                    ink = "white" if value > 2.5 or value < 0.6 else "black"
                    text = f"{value:.2f}"
                    axes.text(j, i, text, ha="center", va="center", fontsize=6.5, color=ink)
        axes.set_xticks(range(len(columns)), map(str, columns), rotation=45, fontsize=7)
        axes.set_yticks(range(len(rows)), rows, fontsize=7)
        axes.set(xlabel=grid.axes.column, ylabel=grid.axes.row, title=plain(grid.title))
        figure.colorbar(image, label=f"{above} / ours")
        return plots.to_svg(figure)
