"""fuselab report: one HTML page, the same tables as Markdown, and a picture if asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fuselab import metrics
from fuselab.commands import exits
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
        view = build.build(records, store.environment(), store.span(), title=Path(folder).name)
    if not records:
        print(f"{folder}: the run holds no cell", file=sys.stderr)
        return exits.NO_DATA
    written = {
        "html": html.write_html(view, page or Path(folder) / "report.html"),
        "markdown": replace(markdown or Path(folder) / "report.md", text.to_markdown(view)),
    }
    if picture:
        timed = [r for r in records if r["role"] != "ceiling" and r["median_us"]]
        first = timed[0] if timed else records[0]
        plots.save_svg(records, picture, op=op or first["op"], dtype=dtype or first["dtype"])
        written["picture"] = Path(picture)
    if as_json:
        print(json.dumps({name: str(path) for name, path in written.items()}))
    else:
        print("\n".join(str(path) for path in written.values()))
    return exits.OK
