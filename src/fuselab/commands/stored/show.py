"""fuselab show: the heat maps of a run in the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from fuselab.commands import exits
from fuselab.commands.stored import frontier
from fuselab.output.plain import plain
from fuselab.planning.plan import PlanError, unknown
from fuselab.report.pictures import grid as grids
from fuselab.report.pictures.grid import OURS, Grid, Size
from fuselab.storage.store import Store, StoreError

# From much slower to much faster, of colours that all kinds of eyes tell apart; log2 of the ratio
# up to which each holds.
_SHADES = (
    (-1.0, "rgb(179,88,6)"), (-0.3, "rgb(241,163,64)"), (-0.045, "rgb(254,224,182)"),
    (0.045, "rgb(247,247,247)"), (0.3, "rgb(209,229,240)"), (1.0, "rgb(103,169,207)"),
    (math.inf, "rgb(33,102,172)"),
)  # fmt: skip
_GLYPHS = {"out_of_memory": "OOM", "unsupported": "-", "noisy": "~"}
_LEGEND = (
    "above 1 the best of ours is faster; OOM: out of memory, -: unsupported, ~: noisy, x: failed, "
    ".: not run"
)
_KEYS = ("op", "direction", "dtype")


def run(
    folder: str,
    wanted: Mapping[str, Sequence[str]],
    against: str | None,
    memory_limit: int | None = None,
) -> int:
    """Draw a map for each operator, direction and dtype: the time of `against` (torch.compile,
    else eager) over that of the fastest own implementation, or who would fit into so many bytes; 3
    if nothing can be drawn.
    """
    with Store.open_readonly(folder) as store:
        measured = list(store.measurements())
    for place, key in enumerate(_KEYS):
        have = dict.fromkeys(getattr(m.cell, key) for m in measured)
        for name in wanted[key]:
            if name not in have:
                raise unknown(_KEYS[place], name, have)
    try:
        found = grids.build(measured)
    except grids.NoGrid as error:
        raise StoreError(f"{folder}: {error}") from error
    chosen = [
        grid
        for grid in found
        if all(not wanted[key] or grid.key[i] in wanted[key] for i, key in enumerate(_KEYS))
    ]
    console = Console()
    # Printed by us: at a closed pipe rich ends the process with 1.
    with console.capture() as drawn:
        if memory_limit is None:
            shown = [_show(grid, against, console) for grid in chosen]
        else:
            shown = [frontier.show(grid, memory_limit, console) for grid in chosen]
    if not any(shown) and memory_limit is not None:
        raise StoreError(f"{folder}: no cell has its memory")
    if not any(shown):
        raise PlanError(f"--against: got {against!r}, expected one with good times beside ours")
    print(drawn.get(), end="")
    print(_LEGEND if memory_limit is None else frontier.LEGEND)
    return exits.OK


def _show(grid: Grid, against: str | None, console: Console) -> bool:
    """Draw one map; return whether there is one."""
    above = against or ("compile" if grid.knows("compile", OURS) else "eager")
    if not grid.knows(above, OURS):
        return False
    rows, columns = grid.sizes
    table = Table(box=box.SIMPLE_HEAD, header_style="", padding=(0, 0), title_justify="left")
    table.add_column(plain(f"{grid.axes.row} \\ {grid.axes.column}"), no_wrap=True)
    for column in columns:
        table.add_column(str(column), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row, *(_cell(grid, (row, column), above) for column in columns))
    console.print(Text(plain(f"{grid.title}: {above} / ours"), style="bold"))
    console.print(table)
    return True


def _cell(grid: Grid, size: Size, above: str) -> Text:
    ratio = grid.ratio(size, above, OURS)
    if math.isnan(ratio):
        failed = grid.failed.get(size, {})
        status = failed.get(above) or next(iter(failed.values()), "")
        return Text(f" {_GLYPHS.get(status, 'x' if status else '.')} ")
    shade = next(color for most, color in _SHADES if math.log2(ratio) <= most)
    dark = shade in (_SHADES[0][1], _SHADES[-1][1])
    figure = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"
    return Text(f" {figure} ", Style(color="white" if dark else "black", bgcolor=shade))
