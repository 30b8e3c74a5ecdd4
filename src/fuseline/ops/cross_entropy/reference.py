"""The oracle: the formula in fp64. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """Return the loss of each row, or their sum, over the weights of their targets for the mean."""
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing is {label_smoothing}, expected 0 to 1")
    classes, kept = logits.shape[-1], target != ignore_index
    if bool((kept & ((target < 0) | (target >= classes))).any()):
        raise ValueError(f"target has what is no class, expected 0 to {classes - 1}")
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))  # as the loss is
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    z = torch.where(kept.unsqueeze(-1), z, 0.0)
    shifted = z - z.detach().amax(-1, keepdim=True)
    log_sum = torch.log(torch.exp(shifted).sum(-1, keepdim=True))
    weights = (z.new_ones(classes) if weight is None else weight.to(z.dtype)).expand(z.shape)
    at = torch.where(kept, target, 0).long().unsqueeze(-1)
    apart = log_sum - shifted  # what each class costs
    own = weights.gather(-1, at).squeeze(-1)
    loss = (1 - label_smoothing) * own * apart.gather(-1, at).squeeze(-1)
    if label_smoothing:
        loss = loss + label_smoothing / classes * (weights * apart).sum(-1)
    if z_loss:
        loss = loss + z_loss * torch.logsumexp(z, -1).square()
    loss = torch.where(kept, loss, 0.0)
    if reduction == "none":
        return loss
    total = loss.sum()
    return total / torch.where(kept, own, 0.0).sum() if reduction == "mean" else total
