"""The oracle: the formula in fp64, and in long double for fp64 inputs. Never a fallback."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def swiglu(a: Tensor, b: Tensor | None = None) -> Tensor:
    """Return a * sigmoid(a) * b, for fp64 inputs; without b of the halves of a."""
    if b is None:
        a, b = a.chunk(2, -1)
    return a * torch.sigmoid(a) * b


def longdouble(direction: str, dy: Any, a: Any, b: Any = None) -> tuple[Any, ...]:
    """Return the output, or the gradients of a and b, for numpy longdouble inputs."""
    packed = b is None
    if packed:
        a, b = np.split(a, 2, -1)
    share, other = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(a))
    if direction == "fwd":
        return (a * share * b,)
    da, db = dy * b * share * (1 + a * other), dy * a * share
    return (np.concatenate((da, db), -1),) if packed else (da, db)
