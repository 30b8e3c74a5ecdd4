"""The slow counters of `fuselab run --metrics`: after the timing, on a few named cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fuselab.commands.progress import Steps
from fuselab.counters import Absent, Counter, Counts, Task, uncounted
from fuselab.counters.collected import Collected
from fuselab.counters.compile_time import CompileTime
from fuselab.counters.energy import Energy
from fuselab.counters.instructions import Instructions
from fuselab.counters.ncu import NAMES, NCU
from fuselab.counters.traffic import Traffic
from fuselab.model import Cell, Count, Group, Measurement
from fuselab.output.plain import say
from fuselab.planning.plan import CEILING, PlanError
from fuselab.records import columns
from fuselab.runner import COMPILE_FACTOR
from fuselab.storage.store import Store

FAST, ALL = "fast", "all"
MOST_CELLS = 64


def check(groups: Sequence[Group], names: Sequence[str], device: str) -> None:
    """Refuse names that nothing counts, and more cells than the slow counters have time for."""
    known = [name for counter in counters(device) for name in counter.names]
    for name in names:
        if name not in (ALL, *known):
            raise PlanError(
                f"metrics: got {name!r}, expected {FAST}, {ALL} or one of: {', '.join(known)}"
            )
    cells = sum(impl != CEILING for group in groups for impl in group.impls)
    if cells > MOST_CELLS:
        raise PlanError(
            f"metrics: got {', '.join(map(repr, names))} for {cells} cells, expected at most "
            f"{MOST_CELLS}; name fewer with "
            "--case, --dtype, --impl and --direction"
        )


def run(
    groups: Sequence[Group], store: Store, device: str, timeout: float, names: Sequence[str]
) -> None:
    """Count every timed cell of the groups that lacks these counts; store a batch at a time."""
    wanted = {cell: group for group in groups for cell in group.cells if cell.impl != CEILING}
    found = {m.cell: m for m in store.measurements() if m.cell in wanted and m.status.has_number}
    work = [
        (counter, obstacle, batch)
        for counter in counters(device)
        if ALL in names or {*names} & {*counter.names}
        for obstacle in [counter.obstacle()]
        for batch in _batches(counter, obstacle, found.values())
    ]
    say(f"{len({cell for *_, batch in work for cell in batch})} cells to count")
    with Steps(len(work)) as steps:
        for counter, obstacle, batch in work:
            tasks = [Task(wanted[cell], cell.impl) for cell in batch]
            # Compiling is part of most counts, and tools slow down what they watch.
            new = (
                [uncounted(counter.names, obstacle)] * len(tasks)
                if obstacle
                else counter.count(tasks, timeout * COMPILE_FACTOR)
            )
            for cell, counts in zip(batch, new, strict=True):
                found[cell] = replace(found[cell], counts={**found[cell].counts, **counts})
                store.write(wanted[cell], [found[cell]])
            steps.step(", ".join(counter.names), _outcome(batch, new))


def counters(device: str) -> tuple[Counter, ...]:
    """Return the counters of the kind of device: of all of `COUNTED`, and of plug-ins."""
    others = tuple(Collected(given) for given in columns.plugged().values())
    if device.startswith("cuda"):
        return CompileTime(), *NCU, Energy(), *others
    cpu: tuple[Counter, ...] = (CompileTime(), Instructions(), Traffic())
    theirs = {name for counter in cpu for name in counter.names}
    return (
        *cpu,
        Absent(
            tuple(name for name in NAMES if name not in theirs),
            "Nsight Compute counts on GPUs only",
        ),
        Absent(Energy.names, "NVML meters GPUs only"),
        *others,
    )


def _batches(
    counter: Counter, obstacle: str, measured: Iterable[Measurement]
) -> Iterator[list[Cell]]:
    """Yield what the counter has to do, so many cells at a time."""
    cells = [m.cell for m in measured if _open(counter, obstacle, m.counts)]
    for first in range(0, len(cells), counter.batch):
        yield cells[first : first + counter.batch]


def _open(counter: Counter, obstacle: str, counts: Mapping[str, Count]) -> bool:
    """Say whether there is something to count, or another obstacle than the stored one.

    What was tried and failed has a source, and is not tried again.
    """
    return any(
        name not in counts or (not counts[name].source and counts[name].unavailable != obstacle)
        for name in counter.names
    )


def _outcome(batch: Sequence[Cell], counts: Sequence[Counts]) -> str:
    return "  ".join(
        f"{cell.impl} {cell.direction} {sum(c.value is not None for c in new.values())}"
        f" of {len(new)}"
        for cell, new in zip(batch, counts, strict=True)
    )
