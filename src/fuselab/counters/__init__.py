"""Counters: what a call costs besides time; one interface, one file each, no torch.

A counter writes commands and reads answers; what needs torch runs in a child, `worker/child`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fuselab.model import Count, Group
from fuselab.records.columns import known

Counts = dict[str, Count]


@dataclass(frozen=True)
class Task:
    """One cell to count: its group, which says where the operator is, and the implementation."""

    group: Group
    impl: str


class Counter(Protocol):
    """Makes the counts `names`, which are metrics."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def batch(self) -> int:
        """How many tasks to give it at a time."""

    def obstacle(self) -> str:
        """Return why it cannot count on this machine, with what would mend it, or ""."""

    def count(self, tasks: Sequence[Task], seconds: float) -> list[Counts]:
        """Return the counts of each task; a child may take `seconds` a task."""


@dataclass(frozen=True)
class Absent:
    """Stands for counts that the kind of device does not have."""

    names: tuple[str, ...]
    reason: str
    batch: int = 1

    def obstacle(self) -> str:
        return self.reason

    def count(self, tasks: Sequence[Task], seconds: float) -> list[Counts]:
        return [uncounted(self.names, self.reason) for _ in tasks]


def counted(values: Mapping[str, float], source: str) -> Counts:
    return {name: Count(value, known(name).unit, source) for name, value in values.items()}


def uncounted(names: Iterable[str], reason: str, source: str = "") -> Counts:
    """Return counts without a value; a source says that it was tried, and failed."""
    return {name: Count(None, known(name).unit, source, reason) for name in names}
