"""Timers: one interface, one file each; a timer measures blocks of calls, many labels at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

Call = Callable[[], object]


class TimerError(RuntimeError):
    """The timer cannot vouch for its numbers; the text says why."""


@dataclass(frozen=True)
class Reading:
    """What a timer saw under one label.

    samples_us  time of one call each
    kernels     device events of one call, by name; empty where the timer sees none
    steady      every call had the same events
    """

    samples_us: tuple[float, ...]
    kernels: Mapping[str, int]
    steady: bool = True


class Timer(Protocol):
    """Opened once for a group: blocks inside the `with`, readings after it."""

    name: str

    def __enter__(self) -> Timer: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def block(self, label: str, calls: Sequence[Call], batch: int = 1) -> object:
        """Run every call once, in order, and return the last result; `batch` share a sample."""

    def readings(self) -> dict[str, Reading]:
        """Return what was measured under each label."""
