"""The report as one HTML file that opens offline: tables, and a script that draws and finds."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fuselab.output.files import replace
from fuselab.output.page import environment
from fuselab.report.html.payload import payload
from fuselab.report.html.versus import compared
from fuselab.report.sections import tables
from fuselab.report.shown import Beside, Shown
from fuselab.report.view import Table

_HERE = Path(__file__).parent
# Functions only, but for the last, which calls them.
_SCRIPTS = (*("data", "build", "places", "heat", "lines", "roofline", "cells", "drawer", "main"),)


def to_html(runs: Sequence[Shown], beside: Sequence[Beside] = ()) -> str:
    """Return the page of one run, or of several beside the first, and beside what others published.

    One script, which the policy names by its hash; no load from outside, every text escaped. The
    tables need no script.
    """
    found = [compared(runs[0], other) for other in runs[1:]]
    content = payload(runs, beside)
    code = script()
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return (
        environment(_HERE / "templates")
        .get_template("report.html")
        .render(
            runs=runs,
            versus=found,
            palette=content["colors"],
            label=tables.label,
            ordered=ordered,
            index={key: place for place, key in enumerate(content["keys"])},
            policy=f"script-src 'sha256-{digest}'; ",
            data=packed(content),
            # Ours, and without a "</script": test_report looks.
            script=Markup(code),
        )
    )


def write_html(
    runs: Sequence[Shown], path: str | os.PathLike[str], beside: Sequence[Beside] = ()
) -> Path:
    """Write the page in one step (temporary file, then rename) and return its path."""
    return replace(path, to_html(runs, beside))


def ordered(table: Table, cells: Sequence[Any]) -> Sequence[Any]:
    """Return a row of the table in the order that a page shows it in."""
    return [cells[place] for place in table.order] if table.order else cells


@cache
def script() -> str:
    """Return the page's script: the library that draws charts with its licence, then ours."""
    folder = _HERE / "script"
    chart, licence = (folder / "vendor" / name for name in ("chart.umd.min.js", "LICENSE.md"))
    own = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    # Its last line would have a debugger load a file.
    library, _, _ = chart.read_text(encoding="utf-8").partition("\n//# sourceMappingURL")
    ours = "\n".join(own)
    return (
        f"/*! {licence.read_text(encoding='utf-8')}*/\n{library}\n"
        f'(() => {{\n"use strict";\n{ours}}})();\n'
    )


def packed(content: object) -> str:
    """Return JSON, compressed, in base64: a block of data that no parser of HTML can mistake."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Without a time in it: equal runs make equal pages.
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
