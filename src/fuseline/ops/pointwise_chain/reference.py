"""The oracle: the formula in fp64, and in long double for fp64 inputs. Never a fallback."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def pointwise_chain(x: Tensor) -> Tensor:
    """Return max(x * cos(x), cos(x)) + x * cos(x), for fp64 inputs."""
    y = torch.cos(x)
    return torch.max(x * y, y) + x * y


def longdouble(direction: str, dy: Any, x: Any) -> tuple[Any, ...]:
    """Return the output, or the gradient of x, for numpy longdouble inputs."""
    y, slope = np.cos(x), -np.sin(x)
    product, of_product = x * y, y + x * slope
    if direction == "fwd":  # y + x * y would lose more digits near x = -1 than long double has
        return (np.where(product > y, product + product, y * (1 + x)),)
    of_max = np.where(product > y, of_product, slope)
    return (dy * (of_product + np.where(x == 1, (of_product + slope) / 2, of_max)),)
