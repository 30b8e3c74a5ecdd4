"""fuselab show --memory-limit: at which sizes only some implementations would have room."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from fuselab.model import Status
from fuselab.output.plain import plain
from fuselab.planning.plan import CEILING
from fuselab.report.pictures.grid import OURS, Grid, Size
from fuselab.report.sections.tables import size as in_bytes

ALL, NONE = "all", "none"
_OURS_ALONE = Style(color="white", bgcolor="rgb(33,102,172)")
LEGEND = (
    "by the measured memory of one call: inputs, results, what it saves and its workspace, without "
    "the device's own context; ours: our implementations alone, ?: not measured"
)


def show(grid: Grid, limit: int, console: Console) -> bool:
    """Draw which implementations fit at each size; return whether anything is known."""
    rows, columns = grid.sizes
    found = {
        (row, column): fitting(grid, (row, column), limit) for row in rows for column in columns
    }
    if set(found.values()) <= {"", "?"}:
        return False
    table = Table(box=box.SIMPLE_HEAD, header_style="", padding=(0, 0), title_justify="left")
    table.add_column(plain(f"{grid.axes.row} \\ {grid.axes.column}"), no_wrap=True)
    for column in columns:
        table.add_column(str(column), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row, *(_cell(found[row, column]) for column in columns))
    alone = sum(text == OURS for text in found.values())
    known = sum(text not in ("", "?") for text in found.values())
    title = f"{grid.title}: what fits into {in_bytes(limit)}; {OURS} alone in {alone} of {known}"
    console.print(Text(plain(title), style="bold"), soft_wrap=True)
    console.print(table)
    return True


def fitting(grid: Grid, size: Size, limit: int) -> str:
    """Return who fits: "all", "none", names, "not" and fewer names, "?" or, not run, ""."""
    rows = {name: row for name, row in grid.cells.get(size, {}).items() if name != OURS}
    fits: dict[str, bool] = {}
    for row in rows.values():
        if row["buffer_bytes"] is not None and row["role"] != CEILING:
            name = OURS if row["role"] == "ours" else row["impl"]
            fits[name] = fits.get(name, False) or row["buffer_bytes"] <= limit
    failed = grid.failed.get(size, {})
    for impl, status in failed.items():
        if status == Status.OUT_OF_MEMORY:
            fits.setdefault(impl, False)  # of a device that has more than the limit
    if not fits:
        return "?" if rows or failed else ""
    weighed = [row for row in rows.values() if row["buffer_bytes"] is not None]
    if all(fits.values()):
        return ALL
    fit, not_ = ([n for n, room in fits.items() if room is wanted] for wanted in (True, False))
    if len(fit) > len(not_) or len(weighed) < len(rows):
        return f"not {','.join(not_)}"
    return ",".join(fit) or NONE


def _cell(text: str) -> Text:
    return Text(f" {text or '.'} ", _OURS_ALONE if text == OURS else "")
