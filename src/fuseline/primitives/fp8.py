"""Quantisation to float8_e4m3fn in torch operations."""

from collections.abc import Callable
from typing import Any, Optional, Tuple  # noqa: UP035 (TorchScript)

import torch
import torch.nn.functional as F
from torch import Tensor

MOST = 448.0
# The least normal number of fp32, which is what a block of zeros is divided by.
LEAST_SCALE = 2.0**-126


def divided(v: Tensor, scale: Tensor) -> Tensor:
    """Return v / scale in e4m3, rounded once; what is larger than 448 is 448."""
    return (v / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)


def quantised(
    v: Tensor,
    block: Optional[int],  # noqa: UP045 (TorchScript)
    scale_ub: Optional[float],  # noqa: UP045
) -> Tuple[Tensor, Tensor]:  # noqa: UP006 (TorchScript)
    """Return v in e4m3 and what its blocks were divided by: amax / 448, NaN where one is NaN.

    A block is `block` neighbours of the last dimension, the last of which may be fewer; None: all
    of it. The scales have the blocks as their last dimension. scale_ub: the most that amax counts.
    """
    n = v.shape[-1]
    size = max(n, 1) if block is None else block
    count = 1 if block is None else (n + size - 1) // size
    blocks = F.pad(v, [0, count * size - n]).unflatten(-1, [count, size])
    amax = blocks.abs().amax(-1, keepdim=True)
    if scale_ub is not None:
        amax = amax.clamp(max=scale_ub)
    scale = (amax / 448.0).clamp(min=2.0**-126)
    return divided(blocks, scale).flatten(-2)[..., :n].contiguous(), scale.squeeze(-1)


def by_scale(norm: Callable[..., Tensor], x: Tensor, *args: Any) -> Tensor:
    """Return norm(x, *parameters, eps) by one scale; args: the parameters, scale and eps."""
    *parameters, scale, eps = args
    return divided(norm(x.to(torch.float32), *parameters, eps), scale)


def by_blocks(norm: Callable[..., Tensor], x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """Return the norm by its blocks' scales; args: the parameters, eps, block and scale_ub."""
    *parameters, eps, block, scale_ub = args
    return quantised(norm(x.to(torch.float32), *parameters, eps), block, scale_ub)
