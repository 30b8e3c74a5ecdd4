"""The report as one HTML file that opens offline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fuselab.page import environment
from fuselab.report import tables
from fuselab.report.files import replace
from fuselab.report.plots import colors, inline_svg
from fuselab.report.view import Table, Value, View

_FULL_HEAT = 4.0  # log2: 16 times as fast has the full colour


def to_html(view: View) -> str:
    """Return the page: no script, no load from outside, every text escaped."""
    templates = environment(Path(__file__).with_name("templates"))
    charts = [section.charts for section in view.sections]
    names = dict.fromkeys(s.name for part in charts for chart in part for s in chart.series)
    palette = colors(list(names))
    return templates.get_template("report.html").render(
        view=view,
        palette=palette,
        label=tables.label,
        ordered=ordered,
        heat=_heat,
        # Markup only here: matplotlib has escaped every text of the SVG.
        svgs=[
            [Markup(inline_svg(chart, palette, f"c{i}-{j}")) for j, chart in enumerate(part)]
            for i, part in enumerate(charts)
        ],
    )


def write_html(view: View, path: str | os.PathLike[str]) -> Path:
    """Write the page in one step (temporary file, then rename) and return its path."""
    return replace(path, to_html(view))


def ordered(table: Table, cells: Sequence[Any]) -> Sequence[Any]:
    """Return a row of the table in the order that a page shows it in."""
    return [cells[place] for place in table.order] if table.order else cells


def _heat(value: Value) -> str:
    """Return the strength of a heat map cell's colour in percent; below zero: slower."""
    if value.heat is None:
        return "0"
    return f"{100 * max(-1.0, min(1.0, value.heat / _FULL_HEAT)):.0f}"
