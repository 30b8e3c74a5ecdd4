"""`fuselab.scan.step()`: a script's own word for where a step begins and ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Listener(Protocol):
    """What is told of steps."""

    def begin(self) -> None:
        """Hear that a step begins."""

    def end(self) -> None:
        """Hear that it has ended."""


# Set in the process of a scan alone.
listener: Listener | None = None


@contextmanager
def step() -> Iterator[None]:
    """Mark a step of a script for `fuselab scan`; elsewhere it does nothing."""
    heard = listener
    if heard is not None:
        heard.begin()
    yield
    if heard is not None:
        heard.end()
