"""fuselab compare published:NAME RUN...: what others published, beside up to four runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich import box
from rich.table import Table as Grid

from fuselab.commands import exits
from fuselab.model import Measurement
from fuselab.output.plain import plain
from fuselab.planning.plan import PlanError
from fuselab.published.beside import Line, lines
from fuselab.published.tables import PREFIX, Published, load
from fuselab.report.sections.tables import UNKNOWN
from fuselab.report.text import whole

MOST_RUNS = 4
Runs = Sequence[tuple[str, Sequence[Measurement]]]


def run(name: str, runs: Runs, wanted: Mapping[str, Sequence[str]], as_json: bool) -> int:
    """Print a line for each published table and run; 3 if nothing can be compared."""
    if not 1 <= len(runs) <= MOST_RUNS:
        raise PlanError(f"RUN: got {len(runs)} runs, expected 1 to {MOST_RUNS} beside {name}")
    published = load(name.removeprefix(PREFIX))
    found = [
        line
        for line in lines(published, runs)
        if all(not wanted[key] or getattr(line, key) in wanted[key]
               for key in ("op", "direction", "dtype"))
    ]  # fmt: skip
    if as_json:
        about = {k: v for k, v in asdict(published).items() if k != "tables"}
        print(json.dumps({**about, "lines": [asdict(line) for line in found]}))
    else:
        _print(published, found, len(runs) > 1)
    return exits.OK if any(line.n for line in found) else exits.NO_DATA


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _print(published: Published, found: Sequence[Line], several: bool) -> None:
    print(f"{published.source}: {published.gpu}, {published.software}")
    print(f"method: {published.method}")
    print(plain(published.note))
    table = Grid(box=box.ASCII, header_style="")
    names = ("operator", "direction", "dtype", *(["run"] if several else []), "time of / time of")
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in ("cells", "published", "measured", "same side", "published us / measured"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in (line for line in found if line.n):
        run_ = [plain(line.run)] if several else []
        table.add_row(
            *(line.op, line.direction, line.dtype, *run_, f"{line.above} / {line.below}"),
            *(str(line.n), _figure(line.published), _figure(line.measured)),
            *(f"{line.agree:.0%}" if line.agree is not None else UNKNOWN, _figure(line.faster)),
        )
    if table.rows:
        print(whole(table), end="")
    reasons: dict[str, list[str]] = {}
    for line in found:
        if line.reason and line.op not in (ops := reasons.setdefault(line.reason, [])):
            ops.append(line.op)
    for reason, ops in reasons.items():
        print(plain(f"not compared: {', '.join(ops)}: {reason}"))
