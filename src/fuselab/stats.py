"""Robust statistics of raw samples: median, bootstrap interval, spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Samples = Sequence[float] | NDArray[np.float64]


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
    return float(np.median(_sorted(samples)))


def interval(
    samples: Samples, level: float = 0.95, resamples: int = 5000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile-bootstrap confidence interval of the median."""
    medians = _medians(_sorted(samples), resamples, np.random.default_rng(seed))
    return _quantiles(medians, level)


def ratio_interval(
    first: Samples, second: Samples, level: float = 0.95, resamples: int = 5000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile-bootstrap interval of the second median over the first.

    The samples must be positive; the two sides are resampled independently.
    """
    below, above = _sorted(first), _sorted(second)
    if below[0] <= 0 or above[0] <= 0:
        raise ValueError(f"samples: got {min(below[0], above[0])}, expected positive numbers")
    rng = np.random.default_rng(seed)
    denominators = _medians(below, resamples, rng)
    return _quantiles(_medians(above, resamples, rng) / denominators, level)


def spread(samples: Samples) -> float:
    """Return the interquartile range over the median (0: all samples alike)."""
    low, middle, high = np.quantile(_sorted(samples), (0.25, 0.5, 0.75))
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


def _medians(
    ordered: NDArray[np.float64], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the medians of bootstrap resamples.

    A resample of n values is n uniform draws pushed through the sorted samples, and the middle
    order statistics of n uniforms are Beta distributed; so the median of a resample is drawn
    directly, at a cost that does not grow with n.
    """
    count = len(ordered)
    middle = count // 2
    if count % 2:
        return _at(ordered, rng.beta(middle + 1, middle + 1, resamples))
    upper = rng.beta(middle + 1, middle, resamples)
    lower = upper * rng.random(resamples) ** (1 / middle)
    return (_at(ordered, lower) + _at(ordered, upper)) / 2


def _quantiles(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError(f"level: got {level!r}, expected a number between 0 and 1")
    tail = (1 - level) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return float(low), float(high)


def _at(ordered: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    index = np.minimum((uniform * len(ordered)).astype(np.intp), len(ordered) - 1)
    drawn: NDArray[np.float64] = ordered[index]
    return drawn
