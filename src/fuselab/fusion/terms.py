"""The terms of an assertion: limits, and what was seen beyond them; no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fuselab.fusion.record import Fusion

NOT_MEASURED, ANY = "not measured", "any"


@dataclass(frozen=True)
class Verdict:
    """One term: what was seen and what was allowed, as texts."""

    term: str
    seen: str
    allowed: str
    holds: bool

    @property
    def asked(self) -> bool:
        return self.allowed != ANY


@dataclass(frozen=True)
class Terms:
    """The most that is allowed of each; None leaves a term out.

    kernels     kernels of a call
    traffic     bytes moved, over the least
    breaks      graph breaks
    recompiles  compilations beyond a function's first. The default lets a size or an int become
                dynamic once
    peak        bytes allocated at once, over the bytes of the results
    """

    kernels: int | None = 1
    traffic: float | None = 1.05
    breaks: int | None = 0
    recompiles: int | None = 1
    peak: float | None = None

    def __post_init__(self) -> None:
        for name in ("kernels", "breaks", "recompiles"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            if value is not None and not whole:
                raise ValueError(f"{name}: got {value!r}, expected a count or None")
        for name in ("traffic", "peak"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (number and math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: got {value!r}, expected a ratio or None")

    def verdicts(self, found: Fusion) -> tuple[Verdict, ...]:
        return tuple(self._verdicts(found))

    def _verdicts(self, found: Fusion) -> Iterator[Verdict]:
        yield self._kernels(found)
        yield _ratio("traffic", found.traffic, self.traffic)
        yield _count("breaks", len(found.breaks), self.breaks)
        yield _count("recompiles", len(found.recompiles), self.recompiles)
        yield _ratio("peak", found.peak_ratio, self.peak)

    def _kernels(self, found: Fusion) -> Verdict:
        if not found.kernels and self.kernels != 0:
            # Nothing to hold the terms against is no proof that they hold.
            return Verdict("kernels", "none was seen", "at least 1", False)
        return _count("kernels", len(found.kernels), self.kernels)


def _count(term: str, seen: int, allowed: int | None) -> Verdict:
    if allowed is None:
        return Verdict(term, str(seen), ANY, True)
    return Verdict(term, str(seen), f"at most {allowed}", seen <= allowed)


def _ratio(term: str, seen: float | None, allowed: float | None) -> Verdict:
    text = NOT_MEASURED if seen is None else f"{seen:.4g}"
    if allowed is None:
        return Verdict(term, text, ANY, True)
    return Verdict(term, text, f"at most {allowed:g}", seen is not None and seen <= allowed)
