"""How well a number must be known: three levels, and when a cell has reached its own."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """What a cell's samples must amount to; one that does not get there is noisy.

    rounds       rounds in one sweep; sweeps are added until the level is reached
    samples      least number of samples
    half_width   most of half the 95 % interval of the median, relative to it
    measured_us  least sum of the samples
    cap_s        seconds of timed calls after which a cell is left as it is
    processes    fresh processes that share the work
    """

    name: str
    rounds: int
    samples: int = 1
    half_width: float = math.inf
    measured_us: float = 0.0
    cap_s: float = 0.0
    processes: int = 1

    def missed(self, samples: int, measured_us: float, half_width: float) -> str:
        """Return what samples of this number, sum and relative half interval lack, or ""."""
        if samples < self.samples:
            return f"{samples} samples, {self.name} wants {self.samples}"
        if measured_us < self.measured_us:
            wanted = self.measured_us / 1e3
            return f"{measured_us / 1e3:.0f} ms measured, {self.name} wants {wanted:.0f}"
        if half_width > self.half_width:
            return f"median known to {half_width:.1%}, {self.name} wants {self.half_width:.1%}"
        return ""


LEVELS = {
    level.name: level
    for level in (
        Level("quick", rounds=3, samples=3),
        Level("standard", rounds=5, samples=30, half_width=0.01, cap_s=2.0),
        Level(
            "publish",
            rounds=5,
            samples=30,
            half_width=0.005,
            measured_us=100_000.0,
            cap_s=10.0,
            processes=2,
        ),
    )
}
STANDARD = "standard"
# Steps of a timer's clock; CUPTI's on an H200 are 32 ns wide: 1.344 us, 1.376 us, nothing between.
RESOLUTION_US = {"cupti": 0.032}
# Seconds a cell takes with all that belongs to it, compiling included; a first guess for the
# estimate before a run, which goes on from what the run itself takes.
SECONDS = {
    ("cuda", "quick"): 0.3,
    ("cuda", "standard"): 0.4,
    ("cuda", "publish"): 3.0,
    ("cpu", "quick"): 0.4,
    ("cpu", "standard"): 2.0,
    ("cpu", "publish"): 20.0,
}


def serves(have: str, wanted: str) -> bool:
    """Say whether a cell measured at one level need not be measured again for another."""
    order = list(LEVELS)
    return have in LEVELS and order.index(have) >= order.index(wanted)


def estimate_s(cells: int, device_type: str, level: str) -> float:
    """Return about how many seconds so many cells take."""
    return cells * SECONDS[device_type, level]
