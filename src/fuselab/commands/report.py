"""fuselab report: one HTML page, the same tables as Markdown, and a picture if asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fuselab import metrics
from fuselab.commands import exits
from fuselab.metrics import Record
from fuselab.plan import CEILING, DTYPE_ALIASES, PlanError
from fuselab.report import build, html, plots, text
from fuselab.report.files import replace
from fuselab.store import Store


def run(
    folder: str,
    *,
    page: str | None = None,
    markdown: str | None = None,
    picture: str | None = None,
    op: str | None = None,
    dtype: str | None = None,
    as_json: bool = False,
) -> int:
    """Write the report of a run and print where it is; 3 if the run holds nothing."""
    with Store.open_readonly(folder) as store:
        records = metrics.records(store.measurements())
        view = build.build(
            records, store.environment(), store.span(), title=Path(folder).resolve().name
        )
    if not records:
        print(f"{folder}: the run holds no cell", file=sys.stderr)
        return exits.NO_DATA
    written = {
        "html": html.write_html(view, page or Path(folder) / "report.html"),
        "markdown": replace(markdown or Path(folder) / "report.md", text.to_markdown(view)),
    }
    if picture:
        timed = [r for r in records if r["role"] != CEILING and r["median_us"] and r["ideal_bytes"]]
        op, dtype = _one_of("op", op, timed), _one_of("dtype", dtype, timed)
        plots.save_svg(records, picture, op=op, dtype=dtype)
        written["picture"] = Path(picture)
    if as_json:
        print(json.dumps({name: str(path) for name, path in written.items()}))
    else:
        print("\n".join(str(path) for path in written.values()))
    return exits.OK


def _one_of(column: str, name: str | None, records: Sequence[Record]) -> str:
    """Return the name asked for, or the first there is; PlanError if it has no bandwidth."""
    have = list(dict.fromkeys(str(record[column]) for record in records))
    wanted = DTYPE_ALIASES.get(name, name) if name else next(iter(have), "none")
    if wanted not in have:
        raise PlanError(f"{column}: got {wanted!r}, expected one of: {', '.join(have)}")
    return wanted
