"""A layer of self-attention as the study writes it, in plain torch operations."""

from __future__ import annotations

from typing import Optional, Tuple  # noqa: UP035  TorchScript knows no other form

import torch
from torch import Tensor

from fuseline.primitives import philox


def multihead_attention(
    x: Tensor,
    w_qkv: Tensor,
    b_qkv: Optional[Tensor],  # noqa: UP045
    w_out: Tensor,
    b_out: Optional[Tensor],  # noqa: UP045
    heads: int,
    kv_heads: Optional[int] = None,  # noqa: UP045
    mask: Optional[Tensor] = None,  # noqa: UP045
    causal: bool = False,
    scale: Optional[float] = None,  # noqa: UP045
    window: Optional[Tuple[int, int]] = None,  # noqa: UP006, UP045
    dropout: float = 0.0,
    seed: Optional[int] = None,  # noqa: UP045
    deterministic: bool = False,
) -> Tensor:
    """Return (softmax(scale * q k^T + mask) v of all heads) @ w_out + b_out."""
    if not 0.0 <= dropout <= 1.0:
        raise ValueError("dropout is no probability")
    own = heads if kv_heads is None else kv_heads
    batch, rows, _ = x.shape
    columns = x @ w_qkv
    if b_qkv is not None:
        columns = columns + b_qkv
    of_all = columns.view(batch, rows, heads + 2 * own, -1).transpose(1, 2)
    q, k, v = of_all[:, :heads], of_all[:, heads : heads + own], of_all[:, heads + own :]
    if own != heads:
        k = k.repeat_interleave(heads // own, 1)
        v = v.repeat_interleave(heads // own, 1)
    scores = q @ k.transpose(2, 3) * (float(q.shape[3]) ** -0.5 if scale is None else scale)
    i = torch.arange(rows, device=x.device)[:, None]
    j = torch.arange(rows, device=x.device)
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
    scores = scores + torch.zeros_like(hidden, dtype=x.dtype).masked_fill(hidden, float("-inf"))
    nothing = (scores == float("-inf")).all(-1, keepdim=True)
    p = torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    if dropout > 0.0 and seed is not None:
        kept = philox.matrix_dropout_factor(batch * heads, rows, rows, dropout, seed, x.device)
        p = p * kept.view(batch, heads, rows, rows).to(p.dtype)
    elif dropout > 0.0:
        p = torch.dropout(p, dropout, True)
    out = (p @ v).transpose(1, 2).reshape(batch, rows, -1) @ w_out
    return out if b_out is None else out + b_out
