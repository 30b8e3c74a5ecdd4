"""The oracle: the formulas in fp64, and in long double for fp64 inputs. Never a fallback."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from fuseline.primitives.gelu_oracle import gelu, share_and_slope


def bias_gelu(x: Tensor, bias: Tensor, approximate: str = "tanh") -> Tensor:
    """Return GELU of x + bias, for fp64 inputs."""
    return gelu(x + bias, approximate)


def longdouble(direction: str, dy: Any, x: Any, bias: Any, approximate: str) -> tuple[Any, ...]:
    """Return the output, or the gradients of x and bias, for numpy longdouble inputs."""
    h = x + bias
    share, slope = share_and_slope(h, approximate)
    if direction == "fwd":
        return (h * share,)
    dx = dy * (share + h * slope)
    return dx, np.sum(dx, axis=tuple(range(dx.ndim - 1)))
