"""One cell in full: headline, kernels, roofline; as text for a terminal and as a mapping."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuselab.metric import Metric
from fuselab.model import Cell, Measurement
from fuselab.output.plain import plain
from fuselab.records import metrics
from fuselab.records.columns import COUNTED, NAMED
from fuselab.records.metrics import Record
from fuselab.report.pictures import roofline
from fuselab.report.pictures.roofline import NO_PEAK, Limits, Peak, Point, Position
from fuselab.report.sections.tables import (
    DIRECTIONS,
    UNKNOWN,
    column,
    number,
    percent,
    si,
    size,
    written,
)
from fuselab.report.text import grid
from fuselab.report.view import Column, Table, Value

# A longer name is shown by its function alone, and in full below the table.
LONGEST = 40
SHARE = Metric("time_share", "of the call's", "ratio", title="share", style="percent")
NO_FLOPS = "the operator's cost model has no FLOPs"
_TIME = NAMED["profiled_us"]
_COUNTS = (_TIME, SHARE, *(m for m in COUNTED if m.by_kernel and m is not _TIME))
_PROOF = ("launches", "copies", "graphs", "breaks", "recompiles")
_NAMELESS = re.compile(r"\(anonymous namespace\)::|<unnamed>::")


@dataclass(frozen=True)
class Kernel:
    """What a kernel did in one call, by the names of the counts; on a CPU a torch operator.

    launches: None where the names of the timer and of the counter do not tell.
    """

    name: str
    launches: int | None
    counts: Mapping[str, float]


@dataclass(frozen=True)
class Profile:
    """All that is known of one cell."""

    record: Record
    kernels: tuple[Kernel, ...]
    position: Position


def build(measured: Sequence[Measurement], cell: Cell, peak: Peak | None = None) -> Profile:
    """Return the profile of a cell that is among `measured`, which may hold its ceiling too."""
    group = [m for m in measured if replace(m.cell, impl=cell.impl) == cell]
    (found,) = (m for m in group if m.cell == cell)
    record = metrics.records(group)[group.index(found)]
    title = f"{cell.op} {DIRECTIONS.get(cell.direction, cell.direction)}, {cell.case} {cell.dtype}"
    return Profile(record, _kernels(found), roofline.position(record, title, peak))


def to_terminal(profile: Profile) -> str:
    """Return the headline, then the tables of a cell that has a time."""
    record, position = profile.record, profile.position
    title = f"{position.title} on {record['device']}, {position.impl}: {record['status']}"
    facts = [f"  {name:<9} {text}" for name, text in _facts(record, position.limits)]
    parts = ["\n".join(map(plain, (title, *facts)))]
    if record["median_us"] is not None:
        for table in (_kernel_table(profile), _roofline_table(position)):
            notes = map(plain, table.notes)
            parts.append("\n".join((f"{table.title}:", *grid(table), *notes)))
    return "\n\n".join(parts)


def to_dict(profile: Profile) -> dict[str, Any]:
    """Return everything under plain names; None is unknown."""
    limits = profile.position.limits
    return {
        "metrics": {name: metrics.finite(value) for name, value in profile.record.items()},
        "kernels": [
            {"name": kernel.name, "launches": kernel.launches}
            | {metric.name: kernel.counts.get(metric.name) for metric in _COUNTS}
            for kernel in profile.kernels
        ],
        "roofline": {
            "measured": _point(profile.position.measured, limits),
            "model": _point(profile.position.model, limits),
            "memory_roof_gbps": limits.gbps,
            "memory_roof_mix": limits.mix,
            "compute_roof_flops_per_s": limits.peak.flops if limits.peak else None,
            "compute_roof_source": limits.peak.source if limits.peak else NO_PEAK,
            "ridge": limits.ridge,
        },
    }


def function(kernel: str) -> str:
    """Return a kernel's bare name, on which ncu's and CUPTI's spelling of C++ agree."""
    head = re.split(r"[<(]", _NAMELESS.sub("", kernel))[0].strip()
    return head.removeprefix("void ").split("::")[-1] or kernel


def _kernels(found: Measurement) -> tuple[Kernel, ...]:
    """Return what was counted by kernel, the longest first, then what only the timer saw."""
    ran = found.proof.kernels
    parts = {name: count.parts for name, count in found.counts.items() if count.parts}
    counted = list(dict.fromkeys(kernel for those in parts.values() for kernel in those))
    times = parts.get("profiled_us", {})
    if whole := sum(times.values()):
        parts[SHARE.name] = {kernel: us / whole for kernel, us in times.items()}
    counted.sort(key=lambda kernel: -times.get(kernel, 0.0))
    known = {function(kernel) for kernel in counted}
    return (
        *(
            Kernel(
                kernel,
                _launches(kernel, counted, ran),
                {name: those[kernel] for name, those in parts.items() if kernel in those},
            )
            for kernel in counted
        ),
        *(Kernel(kernel, n, {}) for kernel, n in ran.items() if function(kernel) not in known),
    )


def _launches(kernel: str, counted: Sequence[str], ran: Mapping[str, int]) -> int | None:
    name = function(kernel)
    alike = sum(function(other) == name for other in counted)
    total = sum(n for other, n in ran.items() if function(other) == name)
    if alike == 1:
        return total or None
    return 1 if total == alike else None


def _facts(record: Record, limits: Limits) -> list[tuple[str, str]]:
    """Return the headline as (name, text) pairs; without a time, reason and accuracy alone."""
    text = {name: number(value) for name, value in record.items() if not isinstance(value, str)}
    error = f"max error {text['max_abs_error']} absolute, RMS {text['rms_error']}"
    error += f", {text['max_ulp']} ULP, {text['max_eps']} eps of the largest value"
    error += f", {text['eager_ratio']} of eager's max error"
    reason = [("reason", str(record["reason"]))] if record["reason"] else []
    accuracy = [("accuracy", error)] if record["max_abs_error"] is not None else []
    if record["median_us"] is None:
        return reason + accuracy
    interval = f"95 % interval {_us(record['ci_low_us'])} to {_us(record['ci_high_us'])}"
    how = f"{record['samples']} samples, timer {record['timer']}, precision {record['precision']}"
    clock = f", SM clock {record['sm_mhz']:.0f} MHz" if record["sm_mhz"] else ""
    proof = ", ".join(f"{name} {record[name]}" for name in _PROOF if record[name] is not None)
    share = f"{percent(record['ceiling_share'])} of the group's ceiling"
    return [
        *reason,
        ("time", f"{_us(record['median_us'])}, {interval}; {how}{clock}"),
        ("in cache", _us(record["hot_us"])),
        ("host", _us(record["host_us"])),
        ("speedup", f"{text['speedup_vs_eager']} (eager / this)"),
        ("limit", f"{share}: {text['ceiling_gbps']} GB/s, {limits.mix or 'mix unknown'}"),
        *accuracy,
        ("memory", ", ".join(f"{m.title} {written(m, record[m.name])}" for m in _MEMORY)),
        (
            "compile",
            f"cold {_seconds(record['compile_cold_s'])}, warm {_seconds(record['compile_warm_s'])}",
        ),
        ("energy", _text(record["energy_j"], lambda joules: f"{joules:.3g} J per call")),
        ("proof", proof or UNKNOWN),
    ]


def _kernel_table(profile: Profile) -> Table:
    """Return a row a kernel and the total; a column that nothing is known for is left out."""
    record, kernels = profile.record, profile.kernels
    names = _NAMES[str(record["device"]).split(":")[0]]
    known = {name: value for name, value in record.items() if value is not None}
    if any(SHARE.name in kernel.counts for kernel in kernels):
        known[SHARE.name] = 1.0
    total = Kernel("total", record["launches"], known)
    counts = [metric for metric in _COUNTS if metric.name in known]
    shown = _shown([kernel.name for kernel in kernels])
    return Table(
        f"{names[0].capitalize()}s",
        (
            Column(names[0], numeric=False),
            Column(names[1]),
            *(Column(names[2]) if m.name == "instructions" else column(m) for m in counts),
        ),
        tuple(
            (
                Value(shown.get(kernel.name, kernel.name)),
                Value(_text(kernel.launches, str)),
                *(Value(written(metric, kernel.counts.get(metric.name))) for metric in counts),
            )
            for kernel in (*kernels, total)
        ),
        notes=tuple(f"{short}: {name}" for name, short in shown.items() if name != short),
    )


def _shown(names: Sequence[str]) -> dict[str, str]:
    """Return a short text for each name, no two alike."""
    short = {name: name if len(name) <= LONGEST else function(name) for name in names}
    texts = list(short.values())
    seen: dict[str, int] = {}
    for name, text in short.items():
        if texts.count(text) > 1:
            seen[text] = seen.get(text, 0) + 1
            short[name] = f"{text} #{seen[text]}"
    return short


def _roofline_table(position: Position) -> Table:
    """Return both accounts, a row each, and what the roofs are."""
    limits = position.limits
    names = ("FLOPs", "bytes", "FLOP / byte", "FLOP/s", "GB/s", "of memory roof")
    more = ("of compute roof", "bound") if limits.peak else ()
    rows = (("measured, DRAM", position.measured), ("model, ideal bytes", position.model))
    return Table(
        "Roofline",
        (Column("account", numeric=False), *map(Column, (*names, *more))),
        tuple((Value(name), *map(Value, _roofline_row(point, limits))) for name, point in rows),
        notes=(
            _memory_roof(limits),
            f"compute roof: {si(limits.peak.flops, 'FLOP/s')} by {limits.peak.source}"
            if limits.peak
            else NO_PEAK,
            *((f"ridge: {number(limits.ridge)} FLOP / byte",) if limits.ridge else ()),
            *((NO_FLOPS,) if position.model.flops is None else ()),
        ),
    )


def _roofline_row(point: Point, limits: Limits) -> list[str]:
    row = [_text(point.flops, si), _text(point.nbytes, size), number(point.intensity)]
    row += [_text(point.flops_per_s, si), number(point.gbps), _share(point.gbps, limits.gbps)]
    if limits.peak:
        row.append(_share(point.flops_per_s, limits.peak.flops))
        row.append(limits.bound(point.intensity) or UNKNOWN)
    return row


def _memory_roof(limits: Limits) -> str:
    if limits.gbps is None:
        return "memory roof unknown: the cell or its group's ceiling has no good time"
    return f"memory roof: {number(limits.gbps)} GB/s by the group's ceiling ({limits.mix})"


def _point(point: Point, limits: Limits) -> dict[str, Any]:
    return {
        "flops": point.flops,
        "bytes": point.nbytes,
        "intensity": point.intensity,
        "flops_per_s": point.flops_per_s,
        "gbps": point.gbps,
        "bound": limits.bound(point.intensity),
    }


def _share(part: float | None, whole: float | None) -> str:
    return UNKNOWN if part is None or not whole else f"{100 * part / whole:.3g}%"


def _text(value: Any, write: Callable[[Any], str]) -> str:
    return UNKNOWN if value is None else write(value)


def _us(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f} us"


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g} s"


# What stands for a kernel, its launches and its instructions on each kind of device.
_NAMES = {
    "cuda": ("kernel", "launches", "warp instructions"),
    "cpu": ("operator", "calls", "instructions of one thread"),
}
_MEMORY = [NAMED[name] for name in ("peak_bytes", "buffer_bytes", "ideal_bytes")]
