"""Who is fastest in a problem, by the verdicts that `fuselab compare` gives on the same run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fuselab.model import Cell, Measurement, Status
from fuselab.records.metrics import Record
from fuselab.statistics import stats
from fuselab.statistics.comparison import Comparison, Verdict, compare, pair

# Why a standing is open.
ALONE, NO_TIME, NOISY, UNDECIDED = "alone", "no time", "noisy", "undecided"
PROBLEM = ("op", "device", "layout", "direction", "dtype", "case")

Problem = tuple[str, ...]

_TURNED = {
    Verdict.FASTER: Verdict.SLOWER,
    Verdict.SLOWER: Verdict.FASTER,
    Verdict.SAME: Verdict.SAME,
}


@dataclass(frozen=True)
class Standing:
    """The outcome of one problem: `names` are the fastest, or, if it is open, those it is between.

    Several are the fastest where they are the same.
    """

    names: tuple[str, ...]
    open: str = ""

    @property
    def fastest(self) -> tuple[str, ...]:
        """The one that is faster than all others, several that are the same, or none."""
        return () if self.open else self.names


class Standings:
    """The standing of each problem of a run; `order` is that of its implementations."""

    def __init__(self, measured: Iterable[Measurement], order: Sequence[str]) -> None:
        self._order = {impl: place for place, impl in enumerate(order)}
        self._of_impl: dict[str, list[Measurement]] = {}
        self._of_problem: dict[Problem, dict[str, Measurement]] = {}
        for m in measured:
            if m.cell.impl in self._order:
                self._of_impl.setdefault(m.cell.impl, []).append(m)
                self._of_problem.setdefault(_problem(m.cell), {})[m.cell.impl] = m
        self._found: dict[tuple[str, str], Mapping[Problem, Comparison]] = {}

    def of(self, row: Record) -> Standing:
        """Return the standing of a record's problem."""
        where = problem(row)
        found = self._of_problem.get(where, {})
        timed = {impl: m for impl, m in found.items() if m.status.has_number}
        if len(timed) < 2:
            return Standing(tuple(timed), ALONE if timed else NO_TIME)
        if any(m.status is Status.NOISY for m in timed.values()):
            return Standing(tuple(timed), NOISY)
        return self._among(where, timed)

    def speedup(self, eager: str, row: Record) -> tuple[Verdict, float] | None:
        """Return the verdict on a record beside eager, and eager's time over its; None: unknown."""
        found = self._compared(eager, row["impl"]).get(problem(row))
        if found is None or found.ratio is None or found.verdict is Verdict.UNKNOWN:
            return None
        if found.impl_a == eager:
            return found.verdict, 1 / found.ratio
        return _TURNED[found.verdict], found.ratio

    def _among(self, where: Problem, timed: Mapping[str, Measurement]) -> Standing:
        first = min(timed, key=lambda impl: stats.median(timed[impl].samples_us))
        verdicts = {
            impl: found.verdict
            for impl in timed
            if impl != first and (found := self._compared(first, impl).get(where))
        }
        unknown = [impl for impl, verdict in verdicts.items() if verdict is Verdict.UNKNOWN]
        if unknown:
            return Standing((first, *unknown), UNDECIDED)
        same = [impl for impl, verdict in verdicts.items() if verdict is Verdict.SAME]
        return Standing((first, *same))

    def _compared(self, one: str, other: str) -> Mapping[Problem, Comparison]:
        """Return the verdicts on two implementations, all of the run's problems in one family."""
        a, b = sorted((one, other), key=lambda impl: self._order[impl])
        if (a, b) not in self._found:
            both = pair(self._of_impl.get(a, ()), self._of_impl.get(b, ()), across=True)
            asked = [one for one in both if not one.unsupported]
            self._found[a, b] = {
                _problem(pair.cells[0]): found
                for pair, found in zip(asked, compare(asked, together=True), strict=True)
            }
        return self._found[a, b]


def problem(row: Record) -> Problem:
    """Return what a record has in common with those that it competes with."""
    return tuple(row[name] for name in PROBLEM)


def _problem(cell: Cell) -> Problem:
    return tuple(getattr(cell, name) for name in PROBLEM)
