"""Puts the kernel times of a finished run beside those of Nsight Compute, in the same cache state.

python tools/against_ncu.py RUN [--cells 64] [--calls 3]

Takes the cells that are ok and have kernel time (timer cupti), without the ceilings and without
those that copy or fill by the driver, which ncu does not time; of more than --cells, so many from
the fastest to the slowest. Each cell is called as in a round of the run: as many calls, over as
many input sets, an emptied cache before where the sets do not fill it. ncu times --calls of them,
by gpu__time_duration.sum without clock or cache control; a cell's figure is the median of the sums
over the kernels of each call.

Both add something of their own to every kernel, and not the same. So both time kernels of known
length first (fuselab::spin, 20 to 1000 us), and what ncu adds more is taken off its figure, once a
kernel. What the two say without that is printed as well.

One child process under ncu times 8 cells, in some 50 s on an H200; they are kept in
RUN/against_ncu.json, and the same command goes on from there. Exit code 1 if the bar is missed.
This file is its own list of operators.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any

import torch
from torch import Tensor

from fuselab.counters import ncu
from fuselab.counters.durations import Block, Durations, measure
from fuselab.model import Group, Measurement, Status
from fuselab.planning.plan import CEILING
from fuselab.statistics import stats
from fuselab.storage.store import Store
from fuselab.worker.device import selftest
from fuseline.testing import Case, Implementation, OpSpec

BATCH = 8
KEPT = "against_ncu.json"
SECONDS = 20.0
# The bar: so many cells, their median difference, and what 95 % of them must be within.
CELLS, MEDIAN, SHARE, RELATIVE, LEAST_US = 60, 0.03, 0.95, 0.05, 2.0
# Below this, what a profiler adds to a kernel is more than the bar allows.
LONG_US = 20.0
# What CUPTI counts and ncu does not see: copies and fills of the driver's.
UNSEEN = ("Memcpy", "Memset")


def spin(out: Tensor, us: int) -> Tensor:
    torch.ops.fuselab.spin(out, us * 1000)
    return out


SPEC = OpSpec(
    name="spin",
    formula="a kernel that runs for so long, by the GPU's own clock",
    reference=spin,
    implementations=(Implementation("spin", spin),),
    make_inputs=lambda case, dtype, device, generator: {
        "out": torch.zeros(1, dtype=torch.int64, device=device),
        **case.args,
    },
    cases=tuple(Case(f"{us}us", {"us": us}) for us in selftest.LENGTHS_US),
    dtypes=(torch.float32,),
    differentiable=(),
)


@dataclass(frozen=True)
class Row:
    """One cell: its time by the lab and by ncu, and the kernels of a call that each saw.

    more_us  what ncu adds to a kernel of known length beyond what the lab's timer adds, once for
             each of these kernels
    """

    name: str
    lab_us: float
    ncu_us: float
    lab_kernels: int
    ncu_kernels: int
    more_us: float

    @property
    def difference(self) -> float:
        return self.off(self.more_us)[0]

    def off(self, more_us: float) -> tuple[float, bool]:
        """Return how far the lab is from ncu less so much, and whether the bar allows it."""
        known = self.ncu_us - more_us
        gap = self.lab_us - known
        return gap / known, abs(gap) <= max(RELATIVE * known, LEAST_US)


@dataclass(frozen=True)
class Own:
    """What a timer makes of kernels of known length: slope, and what it adds to each, in us."""

    slope: float
    offset_us: float


def timed(measured: Sequence[Measurement]) -> list[Measurement]:
    """Return the cells with kernel time."""
    return [
        m
        for m in measured
        if m.status is Status.OK and m.timer == "cupti" and CEILING not in (m.cell.op, m.cell.impl)
    ]


def unseen(measurement: Measurement) -> bool:
    """Whether a call has work that ncu does not time."""
    return any(name.startswith(UNSEEN) for name in measurement.proof.kernels)


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
    calls = proof.calls_per_round or 0
    return Block(
        Group(*place, (cell.impl,)), cell.impl, calls, proof.sets or 0, min(watched, calls)
    )


def spins(device: str, calls: int) -> dict[str, Block]:
    place = ("float32", "fwd", "contiguous", device, (SPEC.name,))
    return {
        f"{case.name} of spinning": Block(
            Group(SPEC.name, case.name, *place, source=str(Path(__file__).resolve())),
            *(SPEC.name, 2 * calls, 1, calls),
        )
        for case in SPEC.cases
    }


def durations(wanted: Mapping[str, Block], kept: Path) -> dict[str, Durations]:
    """Return what ncu says of each block; those in `kept` are not asked again."""
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    todo = [(key, block) for key, block in wanted.items() if key not in found]
    for first in range(0, len(todo), BATCH):
        names, blocks = zip(*todo[first : first + BATCH], strict=True)
        measured = map(asdict, measure(blocks, SECONDS))
        found |= dict(zip(names, measured, strict=True))
        kept.write_text(json.dumps(found))
        done = len(wanted) - len(todo) + first + len(blocks)
        print(f"{done} of {len(wanted)} by ncu", file=sys.stderr, flush=True)
    return {key: Durations(**{n: _fixed(v) for n, v in found[key].items()}) for key in wanted}


def own(found: Mapping[str, Durations]) -> Own:
    """Return what ncu makes of kernels of known length."""
    if reasons := {d.reason for d in found.values() if d.reason}:
        sys.exit(f"kernels of known length: {'; '.join(sorted(reasons))}")
    read = [stats.median(d.us) for d in found.values()]
    return Own(*linear_regression([case.args["us"] for case in SPEC.cases], read))


def own_of_lab(device: str) -> Own:
    line = selftest.line(torch.device(device), "cupti")
    return Own(line["slope"], line["offset_us"])


def _fixed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def row(measurement: Measurement, found: Durations, more_us: float) -> Row:
    cell, kernels = measurement.cell, max(found.kernels)
    return Row(
        f"{cell.direction} {cell.case} {cell.dtype} {cell.impl}",
        stats.median(measurement.samples_us),
        stats.median(found.us),
        measurement.proof.launches or 0,
        kernels,
        more_us * kernels,
    )


def table(rows: Sequence[Row]) -> list[str]:
    """Return one line a cell, the fastest first; a star marks what is outside the tolerance."""
    wide = max([4, *(len(r.name) for r in rows)])
    heads = f"{'lab us':>10} {'ncu us':>10} {'less':>7} {'diff us':>9} {'diff %':>7}  kernels"
    lines = [f"{'cell':{wide}}  {heads}"]
    for r in sorted(rows, key=lambda r: r.ncu_us):
        gap = r.lab_us - (r.ncu_us - r.more_us)
        numbers = f"{r.lab_us:10.3f} {r.ncu_us:10.3f} {r.more_us:7.3f} {gap:+9.3f}"
        seen = str(r.lab_kernels) + (
            "" if r.lab_kernels == r.ncu_kernels else f" (ncu {r.ncu_kernels})"
        )
        mark = "" if r.off(r.more_us)[1] else "  *"
        lines.append(f"{r.name:{wide}}  {numbers} {r.difference:+7.1%}  {seen}{mark}")
    return lines


def verdict(rows: Sequence[Row]) -> tuple[list[str], bool]:
    """Return the figures of the bar as text, and whether it is reached."""
    if not rows:
        return ["no cell could be compared: FAIL"], False
    middle, share = _summary([r.off(r.more_us) for r in rows])
    bars = {
        f"cells compared: {len(rows)} (at least {CELLS})": len(rows) >= CELLS,
        f"median |lab - ncu| / ncu: {middle:.2%} (at most {MEDIAN:.0%})": middle <= MEDIAN,
        f"within max({RELATIVE:.0%}, {LEAST_US:g} us): {share:.1%} (at least {SHARE:.0%})": (
            share >= SHARE
        ),
    }
    signed = stats.median([r.difference for r in rows])
    lines = [f"{text}: {'pass' if good else 'FAIL'}" for text, good in bars.items()]
    lines.append(f"median (lab - ncu) / ncu: {signed:+.2%}")
    long = [r for r in rows if r.ncu_us >= LONG_US * r.ncu_kernels]
    for name, some in (("all", rows), (f"kernels of {LONG_US:g} us and more", long)):
        if some:
            middle, share = _summary([r.off(0.0) for r in some])
            figures = f"median {middle:.2%}, within {share:.1%}"
            lines.append(f"nothing taken off ncu, {len(some)} cells ({name}): {figures}")
    return lines, all(bars.values())


def _summary(found: Sequence[tuple[float, bool]]) -> tuple[float, float]:
    """Return the median size of the differences, and the share that the bar allows."""
    return stats.median([abs(gap) for gap, _ in found]), sum(w for _, w in found) / len(found)


def remarks(found: Sequence[Durations], left_out: int) -> list[str]:
    """Return what is missing and why."""
    reasons = Counter(d.reason for d in found if d.reason)
    lines = [f"not compared, {count} cells: {reason}" for reason, count in reasons.items()]
    if left_out:
        lines.append(f"{left_out} cells left out: ncu does not time the driver's copies and fills")
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
        measured = timed(list(store.measurements()))
    cells = chosen([m for m in measured if not unseen(m)], options.cells)
    if not cells:
        sys.exit(f"{options.run}: no cell has kernel time that ncu could take too")
    if not ncu.program():
        sys.exit(ncu.NO_NCU)
    device, kept = cells[0].cell.device, Path(options.run) / KEPT
    wanted = {f"{m.cell.key} {options.calls} calls": block(m, options.calls) for m in cells}
    try:
        known = own(durations(spins(device, options.calls), kept))
        found = list(durations(wanted, kept).values())
    except ncu.CounterError as error:
        sys.exit(f"ncu: {error}")
    lab = own_of_lab(device)
    more = known.offset_us - lab.offset_us
    rows = [row(m, d, more) for m, d in zip(cells, found, strict=True) if not d.reason]
    lines, good = verdict(rows)
    print(f"ncu: {version()}; {options.calls} calls a cell, one pass, no clock or cache control")
    print(
        f"kernels of known length: ncu reads slope {known.slope:.4f} and {known.offset_us:+.2f} us,"
        f" the lab {lab.slope:.4f} and {lab.offset_us:+.2f} us; {more:.2f} us a kernel less\n"
    )
    print("\n".join([*table(rows), "", *remarks(found, len(measured) - len(cells)), *lines]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
