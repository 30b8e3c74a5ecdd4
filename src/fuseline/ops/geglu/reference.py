"""The oracle: the formulas in fp64, and in long double for fp64 inputs. Never a fallback."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from fuseline.primitives.gelu_oracle import gelu, share_and_slope


def geglu(a: Tensor, b: Tensor | None = None, approximate: str = "tanh") -> Tensor:
    """Return GELU of a times b, for fp64 inputs; without b of the halves of a."""
    if b is None:
        a, b = a.chunk(2, -1)
    return gelu(a, approximate) * b


def longdouble(
    direction: str, dy: Any, a: Any, b: Any = None, approximate: str = "tanh"
) -> tuple[Any, ...]:
    """Return the output, or the gradients of a and b, for numpy longdouble inputs."""
    packed = b is None
    if packed:
        a, b = np.split(a, 2, -1)
    share, slope = share_and_slope(a, approximate)
    if direction == "fwd":
        return (a * share * b,)
    da, db = dy * b * (share + a * slope), dy * a * share
    return (np.concatenate((da, db), -1),) if packed else (da, db)
