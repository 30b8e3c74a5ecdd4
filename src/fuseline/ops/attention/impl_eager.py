"""Attention as the study writes it, in plain torch operations."""

from __future__ import annotations

from typing import Optional, Tuple  # noqa: UP035  TorchScript knows no other form

import torch
from torch import Tensor

from fuseline.primitives import philox


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor] = None,  # noqa: UP045
    causal: bool = False,
    scale: Optional[float] = None,  # noqa: UP045
    window: Optional[Tuple[int, int]] = None,  # noqa: UP006, UP045
    dropout: float = 0.0,
    seed: Optional[int] = None,  # noqa: UP045
    deterministic: bool = False,
) -> Tensor:
    """Return softmax(scale * q k^T + mask) v by two batches of products."""
    if not 0.0 <= dropout <= 1.0:
        raise ValueError("dropout is no probability")
    batch, heads, queries, d = q.shape
    keys = k.shape[2]
    if k.shape[1] != heads:
        k = k.repeat_interleave(heads // k.shape[1], 1)
        v = v.repeat_interleave(heads // v.shape[1], 1)
    factor = float(d) ** -0.5 if scale is None else scale
    q, k, v = (t.reshape(batch * heads, t.shape[2], d) for t in (q, k, v))
    # Preallocate for baddbmm, which does not read it: beta is 0.
    scores = torch.empty(batch * heads, queries, keys, dtype=q.dtype, device=q.device)
    scores = torch.baddbmm(scores, q, k.transpose(1, 2), beta=0, alpha=factor)
    scores = scores.view(batch, heads, queries, keys)
    i = torch.arange(queries, device=q.device)[:, None]
    j = torch.arange(keys, device=q.device)
    hidden = (j > i) if causal else torch.zeros_like(j > i)
    if window is not None:
        if window[0] >= 0:
            hidden = hidden | (j < i - window[0])
        if window[1] >= 0:
            hidden = hidden | (j > i + window[1])
    if mask is not None:
        if mask.dtype == torch.bool:
            hidden = hidden | mask.logical_not()
        else:
            scores = scores + mask.to(scores.dtype)
    scores = scores + torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, float("-inf"))
    nothing = (scores == float("-inf")).all(-1, keepdim=True)
    p = torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    if dropout > 0.0 and seed is not None:
        kept = philox.matrix_dropout_factor(batch * heads, queries, keys, dropout, seed, q.device)
        p = p * kept.view(batch, heads, queries, keys).to(p.dtype)
    elif dropout > 0.0:
        p = torch.dropout(p, dropout, True)
    out = torch.bmm(p.view(batch * heads, queries, keys), v)
    return out.view(batch, heads, queries, d)
