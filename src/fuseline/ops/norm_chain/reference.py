"""The oracle: the formula in fp64, and in long double for fp64 inputs. Never a fallback."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def norm_chain(x: Tensor) -> Tensor:
    """Compute x *= sum(x, -1), three times, for fp64 inputs."""
    for _ in range(3):
        x = x * torch.sum(x, -1, keepdim=True)
    return x


def longdouble(direction: str, dy: Any, x: Any) -> tuple[Any, ...]:
    """Return the output, or the gradient of x, for numpy longdouble inputs."""
    if direction == "fwd":
        for _ in range(3):
            x = x * np.sum(x, axis=-1, keepdims=True)
        return (x,)
    total, dot = (np.sum(t, axis=-1, keepdims=True) for t in (x, dy * x))
    return (dy * total**7 + 7 * total**6 * dot,)
