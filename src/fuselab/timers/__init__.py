"""Timers: one interface, one file each; a timer measures blocks of calls, many labels at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType

Call = Callable[[], object]
NONE: Set[int] = frozenset()


class TimerError(RuntimeError):
    """The timer cannot vouch for its numbers; the text says why."""


class CannotTime(RuntimeError):
    """These calls are beyond this timer, and the process must end; the text says why."""


@dataclass(frozen=True)
class Reading:
    """What a timer saw under one label.

    samples_us  time of one call each
    kernels     device events of one call, by name; empty where the timer sees none
    steady      every call had the same events
    joined      no work of a call was still running when the stream had gone on
    """

    samples_us: tuple[float, ...]
    kernels: Mapping[str, int]
    steady: bool = True
    joined: bool = True


class Timer(ABC):
    """Opened once for a sweep of rounds: blocks inside the `with`, readings after it."""

    name: str

    def __init__(self) -> None:
        self._samples: dict[str, list[float]] = {}

    def __enter__(self) -> Timer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def preparing(self) -> AbstractContextManager[object]:
        """Return the context in which calls for a block must be made."""
        return nullcontext()

    @abstractmethod
    def block(
        self, label: str, calls: Sequence[Call], batch: int = 1, keep: Set[int] = NONE
    ) -> dict[int, object]:
        """Run every call once, in order; return the results of those in `keep`.

        `batch` calls share a sample, where the timer cannot resolve one.
        """

    def readings(self) -> dict[str, Reading]:
        """Return what was measured under each label."""
        return {label: Reading(tuple(found), {}) for label, found in self._samples.items()}

    @classmethod
    def release(cls) -> None:
        """Leave nothing of the timer in the process; called after the last sweep."""
        return
