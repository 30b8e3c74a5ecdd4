"""The cross-entropy as models write it, in plain torch operations."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Optional[Tensor] = None,  # noqa: UP045 (TorchScript's syntax)
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: Optional[float] = None,  # noqa: UP045
) -> Tensor:
    """Return the loss of fp32 logits, fp64 of fp64, by torch's function and formulas."""
    z = logits if logits.dtype == torch.float64 else logits.float()
    if softcap is not None:
        z = torch.tanh(z / softcap) * softcap
    if weight is not None:
        weight = weight.to(z.dtype)
    rows, classes = z.flatten(0, -2) if z.dim() > 1 else z.unsqueeze(0), target.long().flatten()
    plain = z_loss == 0.0
    loss = torch.nn.functional.cross_entropy(
        rows,
        classes,
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction if plain else "none",
        label_smoothing=label_smoothing,
    )
    kept = classes != ignore_index
    if not plain:
        square = torch.logsumexp(rows, dim=-1).square()
        loss = loss + z_loss * torch.where(kept, square, torch.zeros_like(square))
        if reduction != "none":
            loss = loss.sum()
        if reduction == "mean":
            count = kept.sum().to(loss.dtype)
            if weight is not None:
                count = weight[classes[kept]].sum()
            loss = loss / count
    return loss.view(target.shape) if reduction == "none" else loss
