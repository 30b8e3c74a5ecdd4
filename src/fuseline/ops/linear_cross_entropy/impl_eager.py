"""The loss of a linear layer as models write it, in plain torch operations."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from fuseline.ops.cross_entropy.impl_eager import cross_entropy


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Optional[Tensor] = None,  # noqa: UP045 (TorchScript's syntax)
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: Optional[float] = None,  # noqa: UP045
) -> Tensor:
    """Return the loss of all logits in fp32, fp64 of fp64."""
    z = torch.nn.functional.linear(hidden, weight, bias)
    return cross_entropy(z, target, None, ignore_index, reduction, label_smoothing, z_loss, softcap)
