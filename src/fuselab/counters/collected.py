"""Metrics of plug-ins, whose `collect` a child calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuselab.counters import Counts, Task, counted, uncounted
from fuselab.counters.launch import answers
from fuselab.metric import Metric
from fuselab.plugins import Given


@dataclass(frozen=True)
class Collecting(Task):
    """A task with the name of what is to be collected."""

    metric: str


class Collected:
    """One metric of a plug-in; what it raises, or ends a process by, is the reason for no count."""

    batch = 16

    def __init__(self, given: Given[Metric]) -> None:
        self.names, self._package = (given.value.name,), given.package

    def obstacle(self) -> str:
        return ""

    def count(self, tasks: Sequence[Task], seconds: float) -> list[Counts]:
        (name,) = self.names
        asked = [Collecting(task.group, task.impl, name) for task in tasks]
        return [
            uncounted(self.names, f"{self._package}: {answer['error']}", self._package)
            if "error" in answer
            else counted(answer, self._package)
            for answer in answers("collect", asked, seconds)
        ]
