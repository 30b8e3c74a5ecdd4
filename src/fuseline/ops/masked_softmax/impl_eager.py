"""The masked softmax as a model writes it."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor


def masked_softmax(
    x: Tensor,
    mask: Optional[Tensor] = None,  # noqa: UP045  TorchScript knows no other form
    causal: bool = False,
    scale: float = 1.0,
    log: bool = False,
) -> Tensor:
    """Return torch's softmax or log_softmax of x * scale, plus
    the mask, -Inf where causal hides it.
    """
    z = x * scale
    if mask is not None:
        z = z + mask
    if causal:
        queries, keys = x.shape[-2], x.shape[-1]
        seen = torch.ones(queries, keys, dtype=torch.bool, device=x.device).tril(keys - queries)
        z = z.masked_fill(seen.logical_not(), float("-inf"))
    y = torch.log_softmax(z, -1) if log else torch.softmax(z, -1)
    return y.to(x.dtype)
