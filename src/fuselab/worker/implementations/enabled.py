"""The implementation `enabled`: torch's own function while fuseline.enable() is on."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

import fuseline

ENABLED = "enabled"


class Takeover:
    """fuseline.enabled() each time that it is opened, at no cost to the calls inside.

    served  calls of ATen's operators that our kernels served in the last opening, by name
    """

    def __init__(self) -> None:
        self.served: dict[str, int] = {}

    def __enter__(self) -> Takeover:
        self._block = fuseline.enabled()
        self._block.__enter__()
        self._before = _served()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.served = dict(_served() - self._before)
        self._block.__exit__(kind, error, trace)


def _served() -> Counter[str]:
    """Return the calls served since the process began, on all devices."""
    found: Counter[str] = Counter()
    for pair in fuseline.status().served:
        found.update(pair.calls)
    return found
