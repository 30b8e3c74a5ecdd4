"""Is B faster or slower than A? One verdict a cell, a geometric mean over all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from fuselab.model import ISOLATED, Cell, Measurement, Status
from fuselab.statistics import ranks, stats

WALL = "wall"
MARGIN, LEAST_US = 0.03, 0.3
WALL_MARGIN = 0.05
FALSE_SHARE = 0.01  # of the cells called different, how many may be so by chance
CLOCK_TOLERANCE = 0.02
COMPLETE = 0.95  # share of the cells that must be decided before a gate may pass


class Verdict(str, Enum):
    """What B is beside A; `unknown` always has a reason."""

    SLOWER = "slower"
    FASTER = "faster"
    UNKNOWN = "unknown"
    SAME = "same"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Pair:
    """The two measurements of one cell, None where a side has none.

    cells   what each side calls it; where a side has none, the other's
    """

    cells: tuple[Cell, Cell]
    a: Measurement | None
    b: Measurement | None

    @property
    def samples(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (self.a.samples_us if self.a else (), self.b.samples_us if self.b else ())

    @property
    def timer(self) -> str:
        return self.a.timer if self.a else ""

    @property
    def unsupported(self) -> bool:
        """Whether neither side can have it."""
        return all(m is not None and m.status is Status.UNSUPPORTED for m in (self.a, self.b))


@dataclass(frozen=True)
class Comparison:
    """One cell of B beside the same of A.

    a_us, b_us   medians, None where a side has no number
    ratio        B's median over A's; None where the two are not comparable
    low, high    95 % bootstrap interval of the ratio
    p            of the rank test, adjusted for the number of cells
    """

    op: str
    direction: str
    case: str
    dtype: str
    layout: str
    device: str
    impl_a: str
    impl_b: str
    a_us: float | None
    b_us: float | None
    verdict: Verdict
    reason: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class Summary:
    """Geometric mean of B over A in the n of `total` cells that are decided, None if none is."""

    ratio: float | None
    n: int
    total: int
    counts: Mapping[str, int]

    @property
    def slower(self) -> float:
        """The share of the decided cells in which B is slower."""
        return self.counts[Verdict.SLOWER] / max(1, self.n)

    @property
    def complete(self) -> bool:
        return self.n > 0 and self.n >= COMPLETE * self.total


def pair(a: Sequence[Measurement], b: Sequence[Measurement], *, across: bool = False) -> list[Pair]:
    """Return the cells of both sides in A's order, then those that only B has.

    across: two implementations are compared, so their names do not tell cells apart. The device
    does only where a side has several: cuda:0 of one run is cuda:1 of another.
    """
    several = any(len({m.cell.device for m in side}) > 1 for side in (a, b))

    def place(measurement: Measurement) -> tuple[str, ...]:
        cell = measurement.cell
        impl, device = "" if across else cell.impl, cell.device if several else ""
        return (cell.op, impl, cell.direction, cell.case, cell.dtype, cell.layout, device)

    left, right = ({place(m): m for m in side} for side in (a, b))
    return [
        Pair(
            ((left.get(key) or right[key]).cell, (right.get(key) or left[key]).cell),
            left.get(key),
            right.get(key),
        )
        for key in dict.fromkeys((*left, *right))
    ]


def compare(pairs: Sequence[Pair], *, together: bool = False) -> list[Comparison]:
    """Return the verdict on each pair, the chance of error being shared among all of them.

    together: the sides come from one run, and only what ran in one environment is comparable.
    """
    found = [_open(both, _obstacle(both.a, both.b, together)) for both in pairs]
    decidable = [index for index, one in enumerate(found) if not one.reason]
    chances = ranks.adjusted([ranks.mann_whitney(*pairs[index].samples) for index in decidable])
    for index, p in zip(decidable, chances, strict=True):
        found[index] = _decided(found[index], pairs[index], p)
    return found


def summary(found: Sequence[Comparison]) -> Summary:
    """Return the geometric mean over the decided cells, and how many of each verdict there are."""
    logs = [math.log(c.ratio) for c in found if c.ratio and c.verdict is not Verdict.UNKNOWN]
    counts = Counter(c.verdict for c in found)
    return Summary(
        math.exp(math.fsum(logs) / len(logs)) if logs else None,
        len(logs),
        len(found),
        {str(verdict): counts[verdict] for verdict in Verdict},
    )


def differences(
    a: Iterable[Mapping[str, Any]], b: Iterable[Mapping[str, Any]]
) -> list[tuple[str, str, str]]:
    """Return (name, A's value, B's value) of what differs between the sides' environments."""
    left, right = _facts(a), _facts(b)
    names = dict.fromkeys((*left, *right))
    pairs = ((name, left.get(name, "none"), right.get(name, "none")) for name in names)
    return [(name, ours, theirs) for name, ours, theirs in pairs if ours != theirs]


def _open(both: Pair, reason: str) -> Comparison:
    """Return the comparison without a verdict, for this reason if there is one."""
    cell, other = both.cells
    before, after = (stats.median(samples) if samples else None for samples in both.samples)
    return Comparison(
        *(cell.op, cell.direction, cell.case, cell.dtype, cell.layout, cell.device),
        *(cell.impl, other.impl),
        *(before, after),
        verdict=Verdict.UNKNOWN,
        reason=reason,
    )


def _obstacle(a: Measurement | None, b: Measurement | None, together: bool) -> str:
    """Return why the two cannot be compared, or ""."""
    if a is None or b is None:
        return f"{'A' if a is None else 'B'} has no such cell"
    for name, side in (("A", a), ("B", b)):
        if side.status is not Status.OK:
            return f"{name} is {side.status}: {side.reason}"
        if min(side.samples_us) <= 0:
            return f"{name} has a sample of {min(side.samples_us):g} us"
    for what, left, right in (
        ("device", _kind(a), _kind(b)),
        ("timer", a.timer, b.timer),
        ("method", a.proof.method, b.proof.method),
        ("environment", a.environment, b.environment if together else a.environment),
    ):
        if left != right:
            return f"{what} of A: {left or 'not told'}, of B: {right or 'not told'}"
    return _clocks(a.proof.sm_mhz, b.proof.sm_mhz)


def _kind(measurement: Measurement) -> str:
    return measurement.cell.device.partition(":")[0]


def _clocks(a: Sequence[float] | None, b: Sequence[float] | None) -> str:
    if not a or not b:
        return ""
    first, second = stats.median(a), stats.median(b)
    if max(first, second) <= (1 + CLOCK_TOLERANCE) * min(first, second):
        return ""
    return f"SM clock of A: {first:.0f} MHz, of B: {second:.0f} MHz"


def _decided(found: Comparison, both: Pair, p: float) -> Comparison:
    """Return the comparison with its verdict: the margin, the ranks and the interval must agree."""
    margin, least_us = (WALL_MARGIN, 0.0) if both.timer in (WALL, ISOLATED) else (MARGIN, LEAST_US)
    before, after = map(stats.median, both.samples)
    ratio = after / before
    low, high = stats.ratio_interval(*both.samples)
    found = replace(found, ratio=ratio, low=low, high=high, p=p)
    if abs(math.log(ratio)) > math.log1p(margin) and abs(after - before) > least_us:
        if p < FALSE_SHARE and not low <= 1 <= high:
            return replace(found, verdict=Verdict.SLOWER if ratio > 1 else Verdict.FASTER)
        return replace(found, reason="beyond the margin, but not beyond chance")
    # Samples that would not have shown a difference of the margin do not show that there is none.
    width = math.log(high / low) / 2
    if width > math.log1p(margin) and (high - low) / 2 * before > least_us:
        return replace(found, reason="the interval is wider than the margin")
    return replace(found, verdict=Verdict.SAME)


def _facts(environments: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return each fact's values as text, joined where the environments of one side differ."""
    facts: dict[str, dict[str, None]] = {}
    for environment in environments:
        for name, value in _flat(environment):
            facts.setdefault(name, {})[value] = None
    return {name: " or ".join(values) for name, values in facts.items()}


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif prefix or name != "id":
            yield f"{prefix}{name}", str(value)
