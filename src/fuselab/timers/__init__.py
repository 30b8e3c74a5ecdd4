"""Timers: one interface, one file each; a timer measures blocks of calls, many labels at once."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType

from torch import Tensor

Call = Callable[[], object]


class TimerError(RuntimeError):
    """The timer cannot vouch for its numbers; the text says why."""


class CannotTime(RuntimeError):
    """These calls are beyond this timer, and the process must end; the text says why."""


class Keep:
    """Draws which results of a block are kept, when their calls have returned: nobody, who calls
    or is called, knows it before.

    share    of the results that are offered
    results  by the number of the call: copies, so that nothing done later changes them
    """

    def __init__(self, share: float = 0.0) -> None:
        self.results: dict[int, object] = {}
        self._share, self._random = share, random.SystemRandom()
        self._newest: tuple[int, object] | None = None

    def offer(self, index: int, output: object) -> None:
        """Keep this result or not; the newest one stays alive until the next comes."""
        self._newest = index, output
        if self._random.random() < self._share:
            self.results[index] = _copied(output)

    def insist(self) -> None:
        """Keep the newest result if none was drawn."""
        if not self.results and self._newest is not None:
            self.results[self._newest[0]] = _copied(self._newest[1])


def offer_all(keep: Keep | None, outputs: Sequence[object]) -> None:
    """Offer every result of a block to `keep`, if there is one."""
    for index, output in enumerate(outputs if keep else ()):
        keep.offer(index, output)  # type: ignore[union-attr]


def _copied(output: object) -> object:
    # By the iterator of the base, and by no method of the tensor's own: others compute when read.
    if isinstance(output, tuple):
        return tuple(map(_copied, tuple.__iter__(output)))
    if isinstance(output, list):
        return list(map(_copied, list.__iter__(output)))
    return Tensor.clone(Tensor.detach(output)) if type(output) is Tensor else output


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
        self, label: str, calls: Sequence[Call], batch: int = 1, keep: Keep | None = None
    ) -> None:
        """Run every call once, in order, and offer the results to `keep`.

        `batch` calls share a sample, where the timer cannot resolve one.
        """

    def readings(self) -> dict[str, Reading]:
        """Return what was measured under each label."""
        return {label: Reading(tuple(found), {}) for label, found in self._samples.items()}

    @classmethod
    def release(cls) -> None:
        """Leave nothing of the timer in the process; called after the last sweep."""
        return
