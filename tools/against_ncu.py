"""Puts the kernel times of a finished run beside those of Nsight Compute, in the same cache state.

python tools/against_ncu.py RUN [--cells 64] [--calls 3]

Takes the cells that are ok and have kernel time (timer cupti), without the ceilings; of more than
--cells, so many from the fastest to the slowest. Each cell is called as in a round of the run: as
many calls, over as many input sets, an emptied cache before where the sets do not fill it. ncu
times --calls of them, by gpu__time_duration.sum without clock or cache control; a cell's figure is
the median of the sums over the kernels of each call. One child process under ncu times 8 cells,
in some 50 s on an H200; they are kept in RUN/against_ncu.json, and the same command goes on from
there. Exit code 1 if the bar is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuselab import stats
from fuselab.counters import ncu
from fuselab.counters.durations import Block, Durations, measure
from fuselab.model import Group, Measurement, Status
from fuselab.plan import CEILING
from fuselab.store import Store

BATCH = 8
KEPT = "against_ncu.json"
SECONDS = 20.0
# The bar: so many cells, their median difference, and what 95 % of them must be within.
CELLS, MEDIAN, SHARE, RELATIVE, LEAST_US = 60, 0.03, 0.95, 0.05, 2.0
# What CUPTI counts and ncu does not see: copies and fills of the driver's.
UNSEEN = ("Memcpy", "Memset")


@dataclass(frozen=True)
class Row:
    """One cell: its time by the lab and by ncu, and the kernels of a call that each saw."""

    name: str
    lab_us: float
    ncu_us: float
    lab_kernels: int
    ncu_kernels: int

    @property
    def difference(self) -> float:
        return (self.lab_us - self.ncu_us) / self.ncu_us

    @property
    def within(self) -> bool:
        return abs(self.lab_us - self.ncu_us) <= max(RELATIVE * self.ncu_us, LEAST_US)


def timed(measured: Sequence[Measurement]) -> list[Measurement]:
    """Return the cells that can be put beside ncu."""
    return [
        m
        for m in measured
        if m.status is Status.OK and m.timer == "cupti" and CEILING not in (m.cell.op, m.cell.impl)
    ]


def chosen(cells: Sequence[Measurement], most: int) -> list[Measurement]:
    """Return at most so many of the cells, evenly from the fastest to the slowest."""
    if len(cells) <= most:
        return list(cells)
    order = sorted(range(len(cells)), key=lambda i: stats.median(cells[i].samples_us))
    kept = {order[round(i * (len(order) - 1) / max(1, most - 1))] for i in range(most)}
    return [cells[i] for i in sorted(kept)]


def block(measurement: Measurement, watched: int) -> Block:
    """Return the block of calls as the run timed it."""
    cell, proof = measurement.cell, measurement.proof
    place = (cell.op, cell.case, cell.dtype, cell.direction, cell.layout, cell.device)
    calls = int(proof["calls_per_round"])
    return Block(
        Group(*place, (cell.impl,)), cell.impl, calls, int(proof["sets"]), min(watched, calls)
    )


def durations(cells: Sequence[Measurement], calls: int, kept: Path) -> list[Durations]:
    """Return what ncu says of each cell, a batch at a time; those in `kept` are not asked again."""
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    keys = [f"{cell.cell.key} {calls} calls" for cell in cells]
    todo = [(key, block(m, calls)) for key, m in zip(keys, cells, strict=True) if key not in found]
    for first in range(0, len(todo), BATCH):
        names, blocks = zip(*todo[first : first + BATCH], strict=True)
        measured = map(asdict, measure(blocks, SECONDS))
        found |= dict(zip(names, measured, strict=True))
        kept.write_text(json.dumps(found))
        done = len(keys) - len(todo) + first + len(blocks)
        print(f"{done} of {len(keys)} cells", file=sys.stderr, flush=True)
    return [Durations(**{n: _fixed(v) for n, v in found[key].items()}) for key in keys]


def _fixed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def row(measurement: Measurement, found: Durations) -> Row:
    cell = measurement.cell
    return Row(
        f"{cell.direction} {cell.case} {cell.dtype} {cell.impl}",
        stats.median(measurement.samples_us),
        stats.median(found.us),
        int(measurement.proof.get("launches", 0)),
        max(found.kernels),
    )


def table(rows: Sequence[Row]) -> list[str]:
    """Return one line a cell, the fastest first; a star marks what is outside the tolerance."""
    wide = max([4, *(len(r.name) for r in rows)])
    heads = f"{'lab us':>10} {'ncu us':>10} {'diff us':>9} {'diff %':>7}  kernels"
    lines = [f"{'cell':{wide}}  {heads}"]
    for r in sorted(rows, key=lambda r: r.ncu_us):
        numbers = f"{r.lab_us:10.3f} {r.ncu_us:10.3f} {r.lab_us - r.ncu_us:+9.3f}"
        seen = str(r.lab_kernels) + (
            "" if r.lab_kernels == r.ncu_kernels else f" (ncu {r.ncu_kernels})"
        )
        mark = "" if r.within else "  *"
        lines.append(f"{r.name:{wide}}  {numbers} {r.difference:+7.1%}  {seen}{mark}")
    return lines


def verdict(rows: Sequence[Row]) -> tuple[list[str], bool]:
    """Return the figures of the bar as text, and whether it is reached."""
    if not rows:
        return ["no cell could be compared: FAIL"], False
    sizes = [abs(r.difference) for r in rows]
    middle, share = stats.median(sizes), sum(r.within for r in rows) / len(rows)
    bars = {
        f"cells compared: {len(rows)} (at least {CELLS})": len(rows) >= CELLS,
        f"median |lab - ncu| / ncu: {middle:.2%} (at most {MEDIAN:.0%})": middle <= MEDIAN,
        f"within max({RELATIVE:.0%}, {LEAST_US:g} us): {share:.1%} (at least {SHARE:.0%})": (
            share >= SHARE
        ),
    }
    signed = stats.median([r.difference for r in rows])
    lines = [f"{text}: {'pass' if good else 'FAIL'}" for text, good in bars.items()]
    return [*lines, f"median (lab - ncu) / ncu: {signed:+.2%}"], all(bars.values())


def remarks(pairs: Sequence[tuple[Measurement, Durations]]) -> list[str]:
    """Return what is missing and why, and where ncu cannot see all."""
    reasons = Counter(d.reason for _, d in pairs if d.reason)
    lines = [f"not compared, {count} cells: {reason}" for reason, count in reasons.items()]
    unseen = sum(any(k.startswith(UNSEEN) for k in m.proof.get("kernels", ())) for m, _ in pairs)
    if unseen:
        lines.append(f"{unseen} cells have the driver's copies or fills, which ncu does not time")
    return lines


def version() -> str:
    said = subprocess.run([ncu.program(), "--version"], capture_output=True, text=True, check=False)
    return (said.stdout.strip().splitlines() or ["version not told"])[-1]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="folder of a finished run on a GPU")
    parser.add_argument("--cells", type=int, default=64, help="at most so many")
    parser.add_argument("--calls", type=int, default=3, help="calls of a cell that ncu times")
    options = parser.parse_args()
    with Store.open_readonly(options.run) as store:
        cells = chosen(timed(list(store.measurements())), options.cells)
    if not ncu.program():
        sys.exit(ncu.NO_NCU)
    try:
        found = durations(cells, options.calls, Path(options.run) / KEPT)
    except ncu.CounterError as error:
        sys.exit(f"ncu: {error}")
    pairs = list(zip(cells, found, strict=True))
    rows = [row(m, d) for m, d in pairs if not d.reason]
    lines, good = verdict(rows)
    print(f"ncu: {version()}; {options.calls} calls a cell, one pass, no clock or cache control\n")
    print("\n".join([*table(rows), "", *remarks(pairs), *lines]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
