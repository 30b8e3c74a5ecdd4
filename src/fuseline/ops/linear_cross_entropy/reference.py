"""The oracle: the formula in fp64. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """Return the loss of each row, their sum, or that over the number of rows that count."""
    z = hidden @ weight.mT
    if bias is not None:
        z = z + bias
    z = z.to(torch.promote_types(z.dtype, torch.float32))  # as the loss is
    kept = target != ignore_index
    if bool((kept & ((target < 0) | (target >= z.shape[-1]))).any()):
        raise ValueError(f"target has what is no class, expected 0 to {z.shape[-1] - 1}")
    z = torch.where(kept.unsqueeze(-1), z, 0.0)
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    most = z.detach().amax(-1, keepdim=True)
    log_sum = torch.log(torch.exp(z - most).sum(-1, keepdim=True))
    apart = log_sum - (z - most)  # what each class costs
    at = torch.where(kept, target, 0).long().unsqueeze(-1)
    loss = (1 - label_smoothing) * apart.gather(-1, at).squeeze(-1)
    loss = loss + label_smoothing * apart.mean(-1) + z_loss * (most + log_sum).squeeze(-1).square()
    loss = torch.where(kept, loss, 0.0)
    if reduction == "none":
        return loss
    return loss.sum() / kept.sum() if reduction == "mean" else loss.sum()
