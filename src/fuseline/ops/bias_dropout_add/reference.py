"""The oracle: the formula in fp64, and in long double for fp64 inputs. Never a fallback."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuseline.primitives import philox


def bias_dropout_add(
    x: Tensor, bias: Tensor, residual: Tensor, p: float, training: bool, seed: int | None
) -> Tensor:
    """Return residual + dropout(x + bias), for fp64 inputs."""
    h = x + bias
    if training and seed is not None:
        h = h * philox.dropout_factor(list(h.shape), p, seed, h.device)
    return residual + h


def longdouble(
    direction: str,
    dy: Any,
    x: Any,
    bias: Any,
    residual: Any,
    p: float,
    training: bool,
    seed: int | None,
) -> tuple[Any, ...]:
    """Return the output, or the gradients of x, bias and residual, for numpy longdouble inputs."""
    factor = np.longdouble(1)
    if training and seed is not None:
        numbers = philox.numbers(seed, x.size, torch.device("cpu")).numpy().reshape(x.shape)
        kept = 0 if p == 1 else 1 / (1 - np.longdouble(p))
        factor = np.where(numbers >= philox.threshold(p), kept, np.longdouble(0))
    if direction == "fwd":
        return (residual + (x + bias) * factor,)
    dx = dy * factor
    lead = dx.ndim - bias.ndim
    repeated = tuple(d for d in range(dx.ndim) if d < lead or bias.shape[d - lead] != dx.shape[d])
    return dx, dx.sum(repeated, keepdims=True).reshape(bias.shape), dy
