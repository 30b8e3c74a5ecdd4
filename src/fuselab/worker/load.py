"""What other processes take from the CPU while we time on it."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic

import torch

STAT = Path("/proc/stat")
# The share of all cores that others may use beyond those that we leave idle.
ALLOWED = 0.1
# /proc/stat counts in hundredths of a second.
LEAST_SECONDS = 0.05


class OtherLoad:
    """Measures, while open, how many cores other processes kept busy."""

    def __init__(self) -> None:
        self.cores = 0.0
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
        idle = max(0, total - torch.get_num_threads())
        if self._seconds < LEAST_SECONDS or self.cores <= idle + ALLOWED * total:
            return ""
        return f"other processes kept {self.cores:.1f} of {total} cores busy while it was timed"


def _others_seconds() -> float:
    """Return the CPU time that all processes but this one have used so far."""
    if not STAT.is_file():
        return 0.0
    user, nice, system, _idle, _wait, irq, softirq, steal = map(
        int, STAT.read_text().split("\n", 1)[0].split()[1:9]
    )
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    own = os.times()
    return busy - own.user - own.system
