"""The oracle: the formula in fp64, and in long double for fp64 inputs. Never a fallback."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def masked_softmax(
    x: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float = 1.0,
    log: bool = False,
) -> Tensor:
    """Return the softmax of scale * x + mask, or its logarithm, for fp64 inputs."""
    z = scale * x
    if mask is not None:
        z = z + mask
    if causal:
        queries, keys = x.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool, device=x.device).tril(keys - queries)
        z = torch.where(seen, z, -torch.inf)
    shifted = z - z.detach().amax(-1, keepdim=True)
    e = torch.exp(shifted)
    total = e.sum(-1, keepdim=True)
    return shifted - torch.log(total) if log else e / total


def longdouble(
    direction: str, dy: Any, x: Any, mask: Any, causal: bool, scale: float, log: bool
) -> tuple[Any, ...]:
    """Return the output, or the gradients of x and the mask, for numpy longdouble inputs."""
    z = scale * x + (0 if mask is None else mask)
    seen = np.ones(x.shape[-2:] if causal else x.shape[-1:], dtype=bool)
    if causal:
        seen = np.tril(seen, x.shape[-1] - x.shape[-2])
    z = np.where(seen, z, -np.inf)
    shifted = z - np.max(z, axis=-1, keepdims=True)
    e = np.exp(shifted)
    total = np.sum(e, axis=-1, keepdims=True)
    y = e / total
    if direction == "fwd":
        return (shifted - np.log(total) if log else y,)
    dot = np.sum(dy if log else dy * y, axis=-1, keepdims=True)
    dz = np.where(seen, dy - y * dot if log else y * (dy - dot), 0)
    if mask is None:
        return (scale * dz,)
    summed = tuple(range(dz.ndim - mask.ndim))
    dmask = np.sum(dz, axis=summed)
    ones = tuple(d for d in range(mask.ndim) if mask.shape[d] == 1)
    return scale * dz, np.sum(dmask, axis=ones, keepdims=True)
