"""Robust statistics of raw samples: median, bootstrap interval, spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Samples = Sequence[float] | NDArray[np.float64]
Places = tuple[NDArray[np.intp], NDArray[np.intp]]


@dataclass(frozen=True)
class Summary:
    """One cell's samples in five numbers, in the unit of the samples.

    low, high   percentile-bootstrap confidence interval of the median
    spread      interquartile range over the median
    """

    count: int
    median: float
    low: float
    high: float
    spread: float

    @property
    def relative_half_width(self) -> float:
        """Half the confidence interval over the median; what the stop rule looks at."""
        return (self.high - self.low) / 2 / self.median if self.median else float("inf")

    def known_to(self, resolution: float) -> float:
        """Return the relative half width, 0 where it is no wider than the clock can tell."""
        return self.relative_half_width if self.high - self.low > 2 * resolution else 0.0


def median(samples: Samples) -> float:
    """Return the middle value; ValueError without samples or with one that is not finite."""
    return _middle(_sorted(samples))


def interval(
    samples: Samples, level: float = 0.95, resamples: int = 5000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile-bootstrap confidence interval of the median."""
    ordered = _sorted(samples)
    ((lower, upper),) = _resampled((len(ordered),), resamples, seed)
    return _quantiles((ordered[lower] + ordered[upper]) / 2, level)


def ratio_interval(
    first: Samples, second: Samples, level: float = 0.95, resamples: int = 5000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile-bootstrap interval of the second median over the first.

    The samples must be positive; the two sides are resampled independently.
    """
    below, above = _sorted(first), _sorted(second)
    if below[0] <= 0 or above[0] <= 0:
        raise ValueError(f"samples: got {min(below[0], above[0])}, expected positive numbers")
    places = _resampled((len(below), len(above)), resamples, seed)
    under, over = (
        ordered[lower] + ordered[upper]
        for ordered, (lower, upper) in zip((below, above), places, strict=True)
    )
    return _quantiles(over / under, level)


def spread(samples: Samples) -> float:
    """Return the interquartile range over the median (0: all samples alike)."""
    ordered = _sorted(samples)
    low, high = np.quantile(ordered, (0.25, 0.75))
    middle = _middle(ordered)
    return float((high - low) / middle) if middle else float("inf")


def summary(samples: Samples, level: float = 0.95) -> Summary:
    """Return count, median, confidence interval of the median and spread."""
    low, high = interval(samples, level)
    return Summary(len(samples), median(samples), low, high, spread(samples))


def scatter(samples: Samples, most: float = 0.1) -> str:
    """Say that the samples leave their median unknown by more than this part of it, or ""."""
    width = summary(samples).relative_half_width
    return f"the median is known to {width:.0%} only" if width > most else ""


def _sorted(samples: Samples) -> NDArray[np.float64]:
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    if ordered.ndim != 1 or not len(ordered) or not np.isfinite(ordered).all():
        raise ValueError(
            f"samples: got {len(ordered)} values of shape {ordered.shape}, "
            "expected a flat, non-empty sequence of finite numbers"
        )
    return ordered


def _middle(ordered: NDArray[np.float64]) -> float:
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


@lru_cache(maxsize=32)
def _resampled(counts: tuple[int, ...], resamples: int, seed: int) -> tuple[Places, ...]:
    """Return where the middles of bootstrap resamples are among sorted samples of these numbers.

    A resample of n values is n uniform draws pushed through the sorted samples, and the middle
    order statistics of n uniforms are Beta distributed; so the middle of a resample is drawn
    directly, at a cost that does not grow with n. The draws are the same for all samples of a
    number, and thousands of cells have one: they are kept.
    """
    rng = np.random.default_rng(seed)
    return tuple(_middles(count, resamples, rng) for count in counts)


def _middles(count: int, resamples: int, rng: np.random.Generator) -> Places:
    half = count // 2
    if count % 2:
        place = _at(count, rng.beta(half + 1, half + 1, resamples))
        return place, place
    upper = rng.beta(half + 1, half, resamples)
    lower = upper * rng.random(resamples) ** (1 / half)
    return _at(count, lower), _at(count, upper)


def _quantiles(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError(f"level: got {level!r}, expected a number between 0 and 1")
    tail = (1 - level) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return float(low), float(high)


def _at(count: int, uniform: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.minimum((uniform * count).astype(np.intp), count - 1)
