"""Cut Cross-Entropy: Apple's Triton kernels, whose logits never leave the processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuselab.rivals.rival import HALF, Rival


def _bind(module: Any) -> Callable[..., Tensor]:
    kernel = module.linear_cross_entropy

    def linear_cross_entropy(
        hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int,
        reduction: str, label_smoothing: float, z_loss: float, softcap: float | None,
    ) -> Tensor:  # fmt: skip
        loss: Tensor = kernel(hidden, weight, target, ignore_index, softcap, reduction)
        return loss

    return linear_cross_entropy


def _limit(bias: Tensor | None, label_smoothing: float, z_loss: float, **others: Any) -> str | None:
    if bias is not None or label_smoothing or z_loss:
        return "it knows neither bias nor label_smoothing nor z_loss"
    return None


LINEAR_CROSS_ENTROPY = Rival(
    "cce",
    "linear_cross_entropy",
    "cut-cross-entropy",
    "cut_cross_entropy",
    _bind,
    dtypes=(*HALF, torch.int64),
    limit=_limit,
)
