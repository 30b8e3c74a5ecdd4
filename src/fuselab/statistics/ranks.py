"""Do two sets of samples differ? The rank test, and its correction for many questions at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, erfc, sqrt

import numpy as np
from numpy.typing import NDArray

# Below this many samples on a side the normal approximation is too coarse; untied ones are counted.
EXACT_COUNT = 8


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p of the Mann-Whitney rank test, corrected for ties and continuity.

    Exact where a side has at most `EXACT_COUNT` samples and no two are alike.
    """
    n, m = len(first), len(second)
    if not n or not m:
        raise ValueError(f"samples: got {n} and {m} values, expected at least one on each side")
    values = np.asarray((*first, *second), dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("samples: got a value that is not finite, expected finite numbers")
    _, place, alike = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(alike) - (alike - 1) / 2)[place]
    wins = float(ranks[:n].sum()) - n * (n + 1) / 2
    if min(n, m) <= EXACT_COUNT and len(alike) == n + m:
        return min(1.0, 2 * _exact(round(min(wins, n * m - wins)), n, m))
    return _normal(abs(wins - n * m / 2), n, m, alike)


def adjusted(chances: Sequence[float]) -> list[float]:
    """Return the p-values adjusted by Benjamini and Hochberg, in the order given.

    Calling those below q different keeps the expected share of false calls among them below q.
    """
    count = len(chances)
    order = np.argsort(chances)[::-1]
    ranks = np.arange(count, 0, -1)
    raised = np.asarray(chances, dtype=np.float64)[order] * count / ranks
    found = np.empty(count)
    found[order] = np.minimum(1.0, np.minimum.accumulate(raised))
    return [float(p) for p in found]


def _exact(wins: int, n: int, m: int) -> float:
    """Return the chance of at most `wins` wins of n samples against m, all orders being equal.

    The numbers of orders by wins are the coefficients of the Gaussian binomial, made factor by
    factor in whole numbers.
    """
    ways = [1] + [0] * wins
    for i in range(1, n + 1):
        for s in range(wins, m + i - 1, -1):
            ways[s] -= ways[s - m - i]
        for s in range(i, wins + 1):
            ways[s] += ways[s - i]
    return sum(ways) / comb(n + m, n)


def _normal(distance: float, n: int, m: int, alike: NDArray[np.intp]) -> float:
    total = n + m
    ties = float(np.sum(alike.astype(np.float64) ** 3 - alike))
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    return min(1.0, erfc((distance - 0.5) / sqrt(2 * variance)))
