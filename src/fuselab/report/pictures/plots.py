"""Bandwidth over size, as a picture."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fuselab.output.files import replace
from fuselab.output.plain import plain
from fuselab.planning.plan import CEILING
from fuselab.records.metrics import Record
from fuselab.report.sections import tables
from fuselab.report.view import Chart, Series

# Mid tones, so that one palette reads on white and on black.
_KNOWN_COLORS = {
    "eager": "#8b919b",
    "torchscript": "#b58a2b",
    "compile": "#d0622f",
    "native": "#9462c6",
    "triton": "#1f9e89",
    "cuda": "#3b7dd8",
    "cpu": "#3b7dd8",
}
KINDS = (".svg", ".png")
_DPI = 200
_OTHER_COLORS = ("#c2477f", "#6f9a2f", "#4f8fa8", "#a0674b", "#7a78d6")
# Text stays text (small files, the page's font), names are never maths, ids are reproducible.
STYLE = {
    "svg.hashsalt": "fuselab",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
}


def colors(impls: Sequence[str]) -> dict[str, str]:
    """Return a colour for each implementation; known names always have the same."""
    others = [impl for impl in impls if impl not in _KNOWN_COLORS]
    spare = {impl: _OTHER_COLORS[index % len(_OTHER_COLORS)] for index, impl in enumerate(others)}
    return {impl: _KNOWN_COLORS.get(impl) or spare[impl] for impl in impls}


def drawable(row: Record) -> bool:
    """Say whether a record has a place in a picture."""
    return bool(row["gbps"] and row["ideal_bytes"])


def save(
    records: Sequence[Record],
    path: str | os.PathLike[str],
    *,
    op: str,
    dtype: str,
    directions: Sequence[str] = ("fwd", "bwd"),
) -> None:
    """Write the bandwidth of one operator and dtype, a panel a direction, as SVG, or as PNG where
    the name ends so.

    ValueError if the records hold no bandwidth for it.
    """
    charts = []
    for direction in directions:
        rows = [
            row
            for row in records
            if (row["op"], row["dtype"], row["direction"]) == (op, dtype, direction)
        ]
        own = [row for row in rows if row["role"] != CEILING]
        limits = [row for row in rows if row["role"] == CEILING]
        title = f"{op} {tables.DIRECTIONS.get(direction, direction)}, {dtype}"
        charts.append(tables.chart(title, own, limits))
    drawn = [chart for chart in charts if chart]
    if not drawn:
        raise ValueError(f"records: no bandwidth of op={op!r}, dtype={dtype!r} in {directions}")
    replace(path, _picture(drawn, png=str(path).lower().endswith(".png")))


def _picture(charts: Sequence[Chart], *, png: bool) -> str | bytes:
    names = list(dict.fromkeys(series.name for chart in charts for series in chart.series))
    palette = colors(names)
    with rc_context(STYLE):
        figure = Figure(figsize=(4.8 * len(charts), 3.5), layout="constrained")
        for index, chart in enumerate(charts):
            axes = figure.add_subplot(1, len(charts), index + 1)
            _draw(axes, chart, palette, "#3a3f47")
            axes.set_title(plain(chart.title), loc="left", color="#1c2026", fontsize=10)
        handles = {}
        for axes in figure.axes:
            lines, labels = axes.get_legend_handles_labels()
            handles.update(dict(zip(labels, lines, strict=True)))
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=len(handles),
            frameon=False,
        )
        return _to_png(figure) if png else to_svg(figure)


def _draw(axes: Any, chart: Chart, palette: dict[str, str], ink: str) -> None:
    for series in chart.series:
        color = palette[series.name]
        style = {"color": color, "lw": 1.8 if series.role == "ours" else 1.1}
        axes.plot(*_line(series), label=plain(tables.label(series.name)), **style)
        axes.plot(*zip(*series.points, strict=True), "o", color=color, ms=2.8, alpha=0.5, mew=0)
    if chart.ceiling.points:
        sizes, speeds = _line(chart.ceiling)
        mark = {"marker": "_", "ms": 14} if len(sizes) == 1 else {}
        style = {"color": ink, "lw": 1, "ls": (0, (4, 2)), **mark}
        axes.plot(sizes, speeds, label="ceiling", **style)
    if chart.peak:
        axes.axhline(chart.peak, color=ink, lw=0.8, ls=(0, (1, 2)))
        axes.annotate(
            f"fixed recipe\n{chart.peak:.4g} GB/s",
            (1, chart.peak),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=ink,
            fontsize=7.5,
        )
    every = [point for series in (*chart.series, chart.ceiling) for point in series.points]
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(_ticks([nbytes for nbytes, _ in every])))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tables.size(round(value))))
    axes.set_ylim(0, 1.12 * max([speed for _, speed in every] + [chart.peak or 0]))
    axes.set_xlabel("ideal bytes", color=ink)
    axes.set_ylabel("GB/s", color=ink)
    axes.tick_params(colors=ink, width=0.6, length=3)
    axes.grid(axis="y", color=ink, alpha=0.12, lw=0.6)
    for spine in axes.spines.values():
        spine.set_color(ink)


def _line(series: Series) -> tuple[list[float], list[float]]:
    """Return the median point of each half octave, where shapes of like size meet."""
    near: dict[int, list[tuple[int, float]]] = {}
    for nbytes, speed in series.points:
        near.setdefault(round(2 * math.log2(nbytes)), []).append((nbytes, speed))
    sizes, speeds = zip(*(zip(*points, strict=True) for points in near.values()), strict=True)
    return [median(values) for values in sizes], [median(values) for values in speeds]


def _ticks(sizes: Sequence[int]) -> list[int]:
    low, high = min(sizes), max(sizes)
    inside = [tick for power in range(0, 60, 4) if low <= (tick := 1 << power) <= high]
    return inside if len(inside) > 1 else sorted({low, high})


def to_svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _to_png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=_DPI)
    return out.getvalue()
