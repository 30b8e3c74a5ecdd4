"""What other processes take from the CPU while we time on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

PROC = Path("/proc")
# The share of all cores that others may use beyond those that we leave idle.
ALLOWED = 0.1
# /proc counts in hundredths of a second.
LEAST_SECONDS = 0.05


class OtherLoad:
    """Measures, while open, how many cores other processes kept busy; our children are no others.

    threads  how many threads of our own want a core; None: as many as there are cores
    """

    def __init__(self, threads: int | None = None) -> None:
        self.cores = 0.0
        self._threads = threads
        self._seconds = 0.0

    def __enter__(self) -> OtherLoad:
        self._begin, self._others = monotonic(), _others_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self._seconds = _others_seconds() - self._others
        self.cores = self._seconds / max(monotonic() - self._begin, 1e-3)

    @property
    def disturbance(self) -> str:
        """Say that the others needed cores which our threads wanted too, or ""."""
        total = os.cpu_count() or 1
        idle = 0 if self._threads is None else max(0, total - self._threads)
        if self._seconds < LEAST_SECONDS or self.cores <= idle + ALLOWED * total:
            return ""
        return f"other processes kept {self.cores:.1f} of {total} cores busy while it was timed"


def told(*reasons: str) -> str:
    """Return the reasons that are not empty, each once, as one text."""
    return "; ".join(dict.fromkeys(filter(None, reasons)))


def _others_seconds() -> float:
    """Return the CPU time that all processes but this one and its children have used so far."""
    stat = PROC / "stat"
    if not stat.is_file():
        return 0.0
    user, nice, system, _idle, _wait, irq, softirq, steal = map(
        int, stat.read_text().split("\n", 1)[0].split()[1:9]
    )
    ticks = user + nice + system + irq + softirq + steal - sum(_ticks(os.getpid()))
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> Iterator[int]:
    """Yield what a process, its children that ended and its living descendants have used."""
    folder = PROC / str(pid)
    try:
        # The program's name, in parentheses, may hold anything.
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        children = [f.read_text() for f in folder.glob("task/*/children")]
    except OSError:  # it has ended meanwhile
        return
    yield sum(map(int, fields[11:15]))
    for child in " ".join(children).split():
        yield from _ticks(int(child))
