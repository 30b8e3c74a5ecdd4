"""The oracle: the formula in fp64, and in long double for fp64 inputs. Never a fallback."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def horizontal_reduction_reduction(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and largest element over the last dimension, for fp64 inputs."""
    return torch.sum(x, -1), torch.amax(x, -1)


def longdouble(direction: str, dy: Any, x: Any) -> tuple[Any, ...]:
    """Return the outputs, or the gradient of x, for numpy longdouble inputs."""
    largest = np.max(x, axis=-1, keepdims=True)
    if direction == "fwd":
        return np.sum(x, axis=-1), largest[..., 0]
    dsum, damax = (d[..., None] for d in dy)
    equal = x == largest
    return (dsum + equal * damax / np.sum(equal, axis=-1, keepdims=True),)
