"""What each method of measuring says of the same cells, and how far off it is; no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuselab.statistics import stats

REFERENCE = "lab"
NCU = "ncu"
CPU, GPU = "cpu", "cuda"


@dataclass(frozen=True)
class Method:
    """A way to measure: by kind of device on which it exists, what sets it off the reference."""

    name: str
    causes: Mapping[str, str]


METHODS = (
    Method(REFERENCE, {
        CPU: "the reference: wall time in interleaved rounds, over inputs that rotate, so that "
             "they come from memory",
        GPU: "the reference: kernel time (CUPTI) in interleaved rounds, over inputs that rotate, "
             "so that they come from memory",
    }),
    Method("pytest-benchmark, synchronize, empty_cache", {
        GPU: "a call waits for the GPU before and after, and gives its memory back to the driver, "
             "which allocates it anew",
    }),
    Method("pytest-benchmark, synchronize", {
        GPU: "a call waits for an idle GPU: launching, the kernel and waking up follow one another",
    }),
    Method("pytest-benchmark", {
        CPU: "one set of inputs, which the cache keeps if it can; rounds are calibrated loops",
        GPU: "nothing waits for the GPU: the host's time, until the queue of launches is full",
    }),
    Method("loop", {
        CPU: "a mean, so what others take from the CPU is in it; one set of inputs, which the "
             "cache keeps if it can",
        GPU: "the longer of the host's time and the GPU's; one set of inputs, which stays in L2",
    }),
    Method("torch.utils.benchmark", {
        CPU: "one set of inputs, which the cache keeps if it can; the median of blocks",
        GPU: "as a loop; the median of blocks",
    }),
    Method("events", {
        GPU: "the GPU is idle when a call comes, so what the host takes between the two events is "
             "in it; one set of inputs, which stays in L2",
    }),
    Method("do_bench", {
        GPU: "zeroing a buffer keeps the GPU busy while the host queues the call, and leaves the "
             "cache full of zeros; the events' own time is in it",
    }),
    Method("graph", {GPU: "a CUDA graph has no host in it; the gaps between kernels count"}),
    Method(NCU, {GPU: "Nsight Compute runs each kernel alone, and adds something to each"}),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One cell by one method: microseconds of a call, a number for each repeat.

    error  why there are none, or ""
    """

    case: str
    impl: str
    method: str
    us: tuple[float, ...] = ()
    error: str = ""

    @property
    def median(self) -> float:
        return stats.median(self.us)


@dataclass(frozen=True)
class Summary:
    """A method over all cells.

    cells    that it and the reference have
    bias     its time over the reference's, less 1: median, least and most over the cells
    more_us  its time less the reference's, median
    scatter  interquartile range of the repeats over their median, median over the cells
    ratio    geometric mean of eager's time over torch.compile's, by this method
    """

    method: str
    cells: int = 0
    bias: float = math.nan
    least: float = math.nan
    most: float = math.nan
    more_us: float = math.nan
    scatter: float = math.nan
    ratio: float = math.nan
    error: str = ""


@dataclass(frozen=True)
class Record:
    """All rows, what they were measured on, and why their times are not to be relied on, or ""."""

    op: str
    device: str
    facts: Mapping[str, Any]
    rows: tuple[Row, ...]
    noise: str = ""

    def summaries(self) -> list[Summary]:
        """Return what each method of the device adds up to, the reference first."""
        return [summary(name, self.rows) for name in names(self.device)]


def names(device: str) -> list[str]:
    """Return the methods that exist on a kind of device, the reference first."""
    return [method.name for method in METHODS if device.partition(":")[0] in method.causes]


def summary(method: str, rows: Sequence[Row]) -> Summary:
    """Return what a method says beside the reference, over the cells that both have."""
    known = {(r.case, r.impl): r for r in rows if r.method == REFERENCE and r.us}
    mine = {(r.case, r.impl): r for r in rows if r.method == method and r.us}
    both = [(mine[cell], known[cell]) for cell in mine if cell in known]
    if not both:
        errors = (r.error for r in rows if r.method == method and r.error)
        return Summary(method, error=next(errors, "no cell"))
    off = [a.median / b.median - 1 for a, b in both]
    return Summary(
        *(method, len(both), stats.median(off), min(off), max(off)),
        stats.median([a.median - b.median for a, b in both]),
        stats.median([stats.spread(a.us) for a, _ in both]),
        _ratio(mine),
    )


def _ratio(cells: Mapping[tuple[str, str], Row]) -> float:
    logs = [
        math.log(row.median / cells[case, "compile"].median)
        for (case, impl), row in cells.items()
        if impl == "eager" and (case, "compile") in cells
    ]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def to_markdown(record: Record) -> str:
    """Return the table of the methods, their causes, and the medians of every cell."""
    found, kind = record.summaries(), record.device.partition(":")[0]
    facts = ", ".join(f"{name} {value}" for name, value in record.facts.items())
    lines = [
        f"# Methods of timing: {record.op}, float32, forward",
        "",
        facts,
        *(("", f"Noisy: {record.noise}.") if record.noise else ()),
        "",
        "| method | cells | bias | least | most | more, us | scatter | eager / compile |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *map(_line, found),
        "",
        *(f"- `{m.name}`: {m.causes[kind]}." for m in METHODS if kind in m.causes),
        "",
        "us of a call:",
        "",
        *_cells(record, [s.method for s in found if s.cells]),
    ]
    return "\n".join(lines) + "\n"


def _line(one: Summary) -> str:
    if not one.cells:
        return f"| `{one.method}` | {one.error} |" + " |" * 6
    shares = " | ".join(f"{share:+.1%}" for share in (one.bias, one.least, one.most))
    return (
        f"| `{one.method}` | {one.cells} | {shares} | {one.more_us:+.2f} | {one.scatter:.1%} "
        f"| {one.ratio:.2f} |"
    )


def _cells(record: Record, methods: Sequence[str]) -> list[str]:
    known = {(r.case, r.impl, r.method): r for r in record.rows if r.us}
    cells = dict.fromkeys((row.case, row.impl) for row in record.rows)
    lines = ["| case | | " + " | ".join(f"`{name}`" for name in methods) + " |"]
    lines.append("|---|---|" + "---:|" * len(methods))
    for case, impl in cells:
        rows = (known.get((case, impl, name)) for name in methods)
        us = (f"{row.median:.2f}" if row else "-" for row in rows)
        lines.append(f"| {case} | {impl} | {' | '.join(us)} |")
    return lines


def to_json_lines(record: Record) -> str:
    """Return a line for each cell and method, with all repeats."""
    cell = {"op": record.op, "direction": "fwd", "dtype": "float32", "device": record.device}
    noise = {"noise": record.noise}
    return "".join(json.dumps(cell | asdict(row) | noise) + "\n" for row in record.rows)
