"""Progress with time to go: a bar on a terminal, one line a group elsewhere; on stderr."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Steps:
    """Counts the steps of a long command; a context manager."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._begin = total, 0, monotonic()
        console = Console(stderr=True)
        self._bar = (
            Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=console,
            )
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Steps:
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._total)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def step(self, name: str, outcome: str) -> None:
        """Say that a step is done."""
        self._done += 1
        if self._bar:
            self._bar.update(self._task, advance=1, description=name)
            return
        left = (monotonic() - self._begin) / self._done * (self._total - self._done)
        head = f"[{self._done}/{self._total}] {name}"
        print(f"{head}  {outcome}  ({_clock(left)} to go)", file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
