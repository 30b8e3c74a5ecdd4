"""The table of the export's columns in docs/schema.md, from the metrics that the lab declares.

python tools/column_table.py            # print the table
python tools/column_table.py --write    # put it into docs/schema.md, between its two markers
"""

from __future__ import annotations

import sys
from pathlib import Path

import marked

from fuselab.records.columns import METRICS

PAGE = Path(__file__).parents[1] / "docs" / "schema.md"
BEGIN, END = "<!-- columns: tools/column_table.py --write -->", "<!-- /columns -->"


def render() -> str:
    """Return the table as Markdown, one line per metric."""
    lines = [f"| `{m.name}` | {m.unit} | {m.meaning} |" for m in METRICS]
    return "\n".join(["| column | unit | meaning |", "|---|---|---|", *lines]) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        marked.write(PAGE, BEGIN, END, render())
    else:
        sys.stdout.write(render())
