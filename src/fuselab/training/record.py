"""What training one variant gave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

# Steps before the times are taken.
WARM = 5
LIMIT = 1e-5


@dataclass(frozen=True)
class Trained:
    """A variant's losses and seconds, step by step.

    framework  with its version
    peak       bytes: the allocator's on a GPU, the process's resident set on a CPU
    note       what was patched
    noise      why the seconds are not to be relied on, or ""
    """

    variant: str
    framework: str
    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    peak: int
    note: str
    noise: str = ""

    @property
    def step(self) -> float:
        """Median seconds of a step after the first ones."""
        return median(later(self.seconds))

    @property
    def compile(self) -> float:
        """Seconds that the first step took beyond a later one."""
        return max(0.0, self.seconds[0] - self.step)

    def difference(self, other: Trained) -> float:
        """Return the largest difference of the losses, step by step; NaN if there is one."""
        found = [abs(a - b) for a, b in zip(self.losses, other.losses, strict=True)]
        return math.nan if any(map(math.isnan, found)) else max(found)


@dataclass(frozen=True)
class Missing:
    """A variant that did not run, and why; `failed` if not for what is not installed."""

    variant: str
    why: str
    failed: bool = True


Row = Trained | Missing


def later(seconds: Sequence[float]) -> Sequence[float]:
    """Return the steps that the median is taken of."""
    return seconds[WARM:] or seconds[1:] or seconds


def trained(rows: Sequence[Row]) -> list[Trained]:
    return [row for row in rows if isinstance(row, Trained)]


def apart(rows: Sequence[Row]) -> list[str]:
    """Return the variants whose losses differ from the first's by more than LIMIT."""
    first, *others = trained(rows)
    return [row.variant for row in others if not row.difference(first) <= LIMIT]
