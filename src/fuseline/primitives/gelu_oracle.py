"""GELU for the oracles: in fp64, and in long double for fp64 inputs. Never a fallback.

Both formulas are written so that they keep their digits where the result is small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

# Of the series and of the fraction; with 50 and 70 more no more than an eps changes.
_SERIES, _FRACTION = 48, 80


def gelu(h: Tensor, approximate: str) -> Tensor:
    """Return GELU of fp64 h: (1 + tanh(v)) / 2 is sigmoid(2v), (1 + erf) / 2 erfc."""
    if approximate == "tanh":
        return h * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3))
    tail: Tensor = torch.special.erfc(-h * 0.5**0.5)
    return h * tail / 2


def share_and_slope(h: Any, approximate: str) -> tuple[Any, Any]:
    """Return what GELU multiplies h by, and its derivative, for numpy longdouble h."""
    wide = np.longdouble
    pi = 4 * np.arctan(wide(1))
    if approximate != "tanh":
        return _normal(h), np.exp(-h * h / 2) / np.sqrt(2 * pi)
    first, third = 2 * np.sqrt(2 / pi), wide("0.044715")
    share = 1 / (1 + np.exp(-first * (h + third * h**3)))
    other = 1 / (1 + np.exp(first * (h + third * h**3)))
    return share, share * other * first * (1 + 3 * third * h**2)


def _normal(h: Any) -> Any:
    """Return the normal distribution in long double, of which
    numpy has none: erfc(-h / sqrt(2)) / 2.
    """
    a = np.abs(h)
    density = np.exp(-a * a / 2) / np.sqrt(8 * np.arctan(np.longdouble(1)))
    tail = np.empty_like(a)
    small = a < 3
    # From 0 to a: a + a^3 / 3 + a^5 / 15 + ..., from a on: 1 / (a + 1 / (a + 2 / (a + ...))).
    near = a[small]
    square, series = near * near, np.ones_like(near)
    for k in range(_SERIES - 1, 0, -1):
        series *= square
        series *= np.longdouble(1) / (2 * k + 1)  # a division takes five multiplications' time
        series += 1
    tail[small] = 0.5 - density[small] * near * series
    far = fraction = a[~small]
    for k in range(_FRACTION, 0, -1):
        fraction = far + k / fraction
    tail[~small] = density[~small] / fraction
    return np.where(h < 0, tail, 1 - tail)
