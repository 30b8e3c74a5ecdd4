"""What to run: rows of the operator table times the filters of the command line give groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol, TypeVar

from fuselab.errors import LabError
from fuselab.model import ISOLATED, Group
from fuselab.planning.wild import CELLS
from fuselab.precision import STANDARD

CEILING = "ceiling"
# Does not wait for the device, so its times say nothing of the memory's speed.
HOST = "host"
# The first one is the device's own.
TIMERS = {"cuda": ("cupti", "graph", "events", HOST), "cpu": ("wall",)}
# Names that an error lists; an operator may have a hundred cases.
LISTED = 16
DTYPE_ALIASES = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class PlanError(LabError, ValueError):
    """A filter names something that does not exist; the text lists what does."""

    code = 2


@dataclass(frozen=True)
class OpRow:
    """What the planner needs to know of one operator; cases are (name, suites) pairs."""

    name: str
    impls: tuple[str, ...]
    cases: tuple[tuple[str, tuple[str, ...]], ...]
    dtypes: tuple[str, ...]
    directions: tuple[str, ...]
    source: str = ""
    code: str = ""
    layouts: tuple[str, ...] = ("contiguous",)

    @property
    def suites(self) -> tuple[str, ...]:
        return _unique(suite for _, suites in self.cases for suite in suites)


@dataclass(frozen=True)
class Filters:
    """What the command line asks for; an empty tuple (or suite None) means everything.

    precision, timer: "" for what suits the suite and the device. seed, cells: of the suite wild.
    """

    suite: str | None = None
    impls: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ("contiguous",)
    device: str = "cpu"
    precision: str = ""
    timer: str = ""
    seed: int = 0
    cells: int = CELLS


class Named(Protocol):
    """A row of an operator, or its spec."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def select(rows: Sequence[N], names: Sequence[str]) -> tuple[N, ...]:
    """Return the rows of the named operators (all without a name), or raise PlanError."""
    _wanted("op", names, (row.name for row in rows))
    return tuple(row for row in rows if not names or row.name in names)


def expand(rows: Sequence[OpRow], filters: Filters) -> tuple[Group, ...]:
    """Return the groups to run, by operator, dtype, direction, layout, then case.

    A name must exist in at least one of the rows, and something must be left, else PlanError.
    """
    check_names(rows, filters)
    groups = product(rows, filters)
    if not groups:
        raise PlanError(nothing_left(filters))
    return groups


def check_names(rows: Sequence[OpRow], filters: Filters) -> None:
    """Raise PlanError for a name that none of the rows has; the text lists what there is."""
    _check_device(filters.device)
    timers = (*TIMERS[filters.device.split(":")[0]], ISOLATED)
    _wanted(f"timer on {filters.device}", (filters.timer,) if filters.timer else (), timers)
    suites = () if filters.suite is None else (filters.suite,)
    _wanted("suite", suites, (name for row in rows for name in row.suites))
    _wanted("impl", filters.impls, (name for row in rows for name in row.impls))
    _wanted("dtype", _long(filters.dtypes), (name for row in rows for name in row.dtypes))
    _wanted("case", filters.cases, (name for row in rows for name, _ in row.cases))
    _wanted("direction", filters.directions, (name for row in rows for name in row.directions))
    _wanted("layout", filters.layouts, (name for row in rows for name in row.layouts))


def product(rows: Sequence[OpRow], filters: Filters) -> tuple[Group, ...]:
    """Return the groups of the rows that the filters leave, perhaps none."""
    return tuple(
        Group(
            *(row.name, case, dtype, direction, layout, filters.device, chosen),
            source=row.source,
            code=row.code,
            precision=filters.precision or STANDARD,
            timer=filters.timer or default_timer(filters.device),
        )
        for row in rows
        if (chosen := kept(row.impls, filters.impls))
        for dtype in kept(row.dtypes, _long(filters.dtypes))
        for direction in kept(row.directions, filters.directions)
        for layout in kept(row.layouts, filters.layouts)
        for case, suites in row.cases
        if kept((case,), filters.cases) and (filters.suite is None or filters.suite in suites)
    )


def nothing_left(filters: Filters) -> str:
    """Return the message for filters that exclude one another."""
    asked = {
        "suite": filters.suite,
        "impl": filters.impls,
        "dtype": filters.dtypes,
        "case": filters.cases,
        "direction": filters.directions,
    }
    names = (
        f"{argument} {value if isinstance(value, str) else ' or '.join(value)}"
        for argument, value in asked.items()
        if value
    )
    return f"nothing to run: no operator has {' and '.join(names) or 'a case'} together"


def unknown(argument: str, name: str, known: Iterable[str]) -> PlanError:
    """Return the error for a name that does not exist: what does, those like it before all."""
    have = _unique(known)
    close = [*get_close_matches(name, have), *(found for found in have if found.startswith(name))]
    listed = ", ".join(have[:LISTED]) or "none"
    more = f" and {len(have) - LISTED} more" if len(have) > LISTED else ""
    meant = f"; did you mean {' or '.join(_unique(close)[:3])}?" if close else ""
    return PlanError(f"{argument}: got {name!r}, expected one of: {listed}{more}{meant}")


def default_timer(device: str) -> str:
    """Return the timer of headlines: kernel time on a GPU, wall time on a CPU."""
    return TIMERS[device.split(":")[0]][0]


def ceiling_group(device: str, precision: str = STANDARD, timer: str = "") -> Group:
    """Return the group that measures the fixed 4 GiB copy and add, the peak of the device."""
    _check_device(device)
    names = (CEILING, "4GiB", "float32", "fwd", "contiguous", device)
    timer = default_timer(device) if timer in ("", ISOLATED) else timer
    return Group(*names, ("copy", "add"), precision=precision, timer=timer)


def _wanted(argument: str, names: Sequence[str], existing: Iterable[str]) -> None:
    known = _unique(existing)
    for name in names:
        if name not in known:
            raise unknown(argument, name, known)


def kept(names: tuple[str, ...], wanted: Sequence[str]) -> tuple[str, ...]:
    """Return those of the names that are wanted; all if none is named."""
    return tuple(name for name in names if not wanted or name in wanted)


def _long(dtypes: Sequence[str]) -> tuple[str, ...]:
    return tuple(DTYPE_ALIASES.get(name, name) for name in dtypes)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _check_device(device: str) -> None:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise PlanError(f"device: got {device!r}, expected one of: cpu, cuda, cuda:N")
