"""Recorded calls measured by the lab's worker: what runs there now, ours, compiled, the ceiling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fuselab import runner
from fuselab.model import Group, Measurement
from fuselab.planning.plan import CEILING, default_timer
from fuselab.runner import Worker
from fuselab.scan.record import Served, Time
from fuselab.statistics import stats
from fuselab.worker import entry
from fuselab.worker.implementations import baselines
from fuselab.worker.implementations.baselines import COMPILE
from fuselab.worker.operators import recorded, specs
from fuselab.worker.tensors import inputs
from fuseline.core.specs.spec import OpSpec

# A call of less is found in the cache by the next one.
CACHED = 0.5
LOG = "worker.log"
# Implementations that are what torch has.
TORCHS = ("eager", "native")


@dataclass(frozen=True)
class How:
    """How calls are measured: device, precision, seconds of a step, whether compiled ones too."""

    device: str
    precision: str
    timeout: float
    compiled: bool


def groups(suite: Path, served: Sequence[Served], how: How) -> Iterator[Group]:
    """Yield a group for each served call and direction of the suite's file."""
    source = recorded.SOURCE + str(suite.resolve())
    table = specs.load(source)
    known = {(case.op, case.name): case for case in recorded.read(suite).cases}
    done: set[str] = set()
    for one in served:
        case = known.get((one.op, one.case))
        if case is None:
            continue
        spec = table[case.op]
        names = _names(spec, one.impl, how)
        for direction in case.directions:
            place = (case.op, case.name, case.dtype, direction, "contiguous", how.device)
            group = Group(
                *(*place, names, source),
                precision=how.precision,
                timer=default_timer(how.device),
            )
            if group.key not in done:
                done.add(group.key)
                yield group


def measured(
    wanted: Sequence[Group], how: How, folder: Path, told: Callable[[str, str], None]
) -> dict[tuple[str, str, str], dict[str, Measurement]]:
    """Return the measurements by operator, case and direction, then by implementation."""
    found = {}
    with Worker(entry.main, how.device, how.timeout, str(folder / LOG)) as worker:
        for step in runner.run(wanted, worker):
            by_impl = {m.cell.impl: m for m in step.measurements}
            found[step.group.op, step.group.case, step.group.direction] = by_impl
            told(step.group.key, step.outcome)
    return found


def with_times(
    one: Served, found: Mapping[tuple[str, str, str], Mapping[str, Measurement]], device: str
) -> Served:
    """Return a served call with what was measured of it.

    On a CPU a call takes longer in a step than by itself, where its memory is given anew and its
    inputs come from elsewhere: by the same factor for what runs there now and for ours.
    """
    times: dict[str, dict[str, Time]] = {}
    factors: dict[str, float] = {}
    for direction, now in one.now_us.items():
        cells = found.get((one.op, one.case, direction), {})
        times[direction] = {name: _time(m, device) for name, m in cells.items()}
        known = (times[direction].get(name) for name in (one.reference, *TORCHS))
        alone = next((time.us for time in known if time and time.us), None)
        if device == "cpu" and alone:
            factors[direction] = now / (alone * one.calls)
    reasons = [t[one.impl].reason for t in times.values() if one.impl in t]
    lacking = one.lacking or next(filter(None, reasons), "")
    return replace(one, times=times, factors=factors, lacking=lacking)


def bandwidth_of(served: Sequence[Served]) -> float:
    """Return the most GB/s that a copy or an addition of a call's bytes reached, 0 if none did."""
    ceilings = (times.get(CEILING) for one in served for times in one.times.values())
    return max((t.gbps for t in ceilings if t is not None and t.gbps), default=0.0)


def _names(spec: OpSpec, impl: str, how: How) -> tuple[str, ...]:
    """Return what is measured of an operator: what torch has, what serves it, what could."""
    roles = {i.name: i.role for i in spec.implementations if not i.asked}
    torchs = [name for name, role in roles.items() if role in TORCHS]
    wanted = [*torchs, impl, *([COMPILE] if how.compiled else [])]
    there = baselines.names(spec, wanted)
    return (*(name for name in dict.fromkeys(wanted) if name in there), CEILING)


def _time(m: Measurement, device: str) -> Time:
    """Return the time of a call as it is in a step: on a CPU in the cache, where it fits."""
    if not m.status.has_number:
        return Time(None, reason=f"{m.status}: {m.reason}")
    samples = m.samples_us
    if device == "cpu" and m.hot_us and (m.buffer_bytes or 0) < CACHED * _cache(device):
        samples = m.hot_us
    us = stats.median(samples)
    gbps = (m.ideal_bytes or 0) / us / 1e3
    return Time(us, *stats.interval(samples), gbps=gbps)


def _cache(device: str) -> int:
    return inputs.cache_bytes(torch.device(device))
