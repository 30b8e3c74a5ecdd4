"""The slow counters of `fuselab run --metrics all`: after the timing, on a few named cells."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fuselab.commands.progress import Steps
from fuselab.counters import Absent, Counter, Task, uncounted
from fuselab.counters.compile_time import CompileTime
from fuselab.counters.energy import Energy
from fuselab.counters.instructions import Instructions
from fuselab.counters.ncu import Ncu
from fuselab.counters.traffic import Traffic
from fuselab.model import Cell, Count, Group, Measurement
from fuselab.plan import CEILING, PlanError
from fuselab.runner import COMPILE_FACTOR
from fuselab.store import Store

MOST_CELLS = 64


def check_size(groups: Sequence[Group]) -> None:
    """Refuse more cells than the slow counters have time for."""
    cells = sum(impl != CEILING for group in groups for impl in group.impls)
    if cells > MOST_CELLS:
        raise PlanError(
            f"metrics: got 'all' for {cells} cells, expected at most {MOST_CELLS}; name fewer with "
            "--case, --dtype, --impl and --direction"
        )


def run(groups: Sequence[Group], store: Store, device: str, timeout: float) -> None:
    """Count every timed cell of the groups that lacks counts, and store a group at a time."""
    found = {m.cell: m for m in store.measurements()}
    obstacles = [(counter, counter.obstacle()) for counter in counters(device)]
    todo = {group: cells for group in groups if (cells := _lacking(group, found, obstacles))}
    _say(f"{sum(map(len, todo.values()))} cells to count")
    with Steps(len(todo)) as steps:
        for group, cells in todo.items():
            measured = [found[cell] for cell in cells]
            for counter, obstacle in obstacles:
                measured = _count(counter, obstacle, group, measured, timeout)
            store.write(group, measured)
            steps.step(group.key, _outcome(measured))


def counters(device: str) -> tuple[Counter, ...]:
    """Return the counters of the kind of device; together they make all of `UNITS`."""
    if device.startswith("cuda"):
        return CompileTime(), Ncu(), Energy()
    cpu: tuple[Counter, ...] = (CompileTime(), Instructions(), Traffic())
    theirs = {name for counter in cpu for name in counter.names}
    return (
        *cpu,
        Absent(
            tuple(name for name in Ncu.names if name not in theirs),
            "Nsight Compute counts on GPUs only",
        ),
        Absent(Energy.names, "NVML meters GPUs only"),
    )


def _lacking(
    group: Group, found: Mapping[Cell, Measurement], obstacles: Sequence[tuple[Counter, str]]
) -> list[Cell]:
    return [
        cell
        for cell in group.cells
        if cell.impl != CEILING
        and cell in found
        and found[cell].status.has_number
        and any(_open(*pair, found[cell].counts) for pair in obstacles)
    ]


def _open(counter: Counter, obstacle: str, counts: Mapping[str, Count]) -> bool:
    """Say whether there is something to count, or another obstacle than the stored one.

    What was tried and failed has a source, and is not tried again.
    """
    return any(
        name not in counts or (not counts[name].source and counts[name].unavailable != obstacle)
        for name in counter.names
    )


def _count(
    counter: Counter,
    obstacle: str,
    group: Group,
    measured: Sequence[Measurement],
    timeout: float,
) -> list[Measurement]:
    wanted = [m for m in measured if _open(counter, obstacle, m.counts)]
    if obstacle:
        new = [uncounted(counter.names, obstacle)] * len(wanted)
    else:
        tasks = [Task(group, m.cell.impl) for m in wanted]
        # Compiling is part of most counts, and tools slow down what they watch.
        new = counter.count(tasks, timeout * COMPILE_FACTOR) if tasks else []
    counts = {m.cell: {**m.counts, **n} for m, n in zip(wanted, new, strict=True)}
    return [replace(m, counts=counts.get(m.cell, m.counts)) for m in measured]


def _outcome(measured: Sequence[Measurement]) -> str:
    return "  ".join(
        f"{m.cell.impl} {sum(c.value is not None for c in m.counts.values())}"
        f" of {len(m.counts)} counts"
        for m in measured
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
