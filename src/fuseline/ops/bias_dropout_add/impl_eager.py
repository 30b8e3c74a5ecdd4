"""Bias, dropout and residual as the study writes them, in plain torch operations."""

from typing import Optional

import torch.nn.functional as F
from torch import Tensor

from fuseline.primitives import philox


def bias_dropout_add(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    p: float = 0.5,
    training: bool = False,
    seed: Optional[int] = None,  # noqa: UP045 - torch.jit.script
) -> Tensor:
    """Return residual + dropout(x + bias); with torch's own
    random numbers where there is no seed.
    """
    h = F.dropout(x + bias, p, training and seed is None)
    if training and seed is not None:
        h = h * philox.dropout_factor(list(h.shape), p, seed, h.device).to(h.dtype)
    return residual + h
