"""Attention of packed sequences as one writes it without an operator: padded, in plain torch
operations.
"""

from __future__ import annotations

from typing import Optional, Tuple  # noqa: UP035  TorchScript knows no other form

import torch
from torch import Tensor

from fuseline.primitives import philox


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: Optional[int] = None,  # noqa: UP045
    max_seqlen_k: Optional[int] = None,  # noqa: UP045
    causal: bool = False,
    scale: Optional[float] = None,  # noqa: UP045
    window: Optional[Tuple[int, int]] = None,  # noqa: UP006, UP045
    dropout: float = 0.0,
    seed: Optional[int] = None,  # noqa: UP045
    deterministic: bool = False,
) -> Tensor:
    """Return softmax(scale * q k^T) v of each sequence."""
    if not 0.0 <= dropout <= 1.0:
        raise ValueError("dropout is no probability")
    heads, d = q.shape[1], q.shape[2]
    if k.shape[1] != heads:
        k = k.repeat_interleave(heads // k.shape[1], 1)
        v = v.repeat_interleave(heads // v.shape[1], 1)
    batch = cu_seqlens_q.shape[0] - 1
    lengths_q = (cu_seqlens_q[1:] - cu_seqlens_q[:-1]).long()
    lengths_k = (cu_seqlens_k[1:] - cu_seqlens_k[:-1]).long()
    queries = int(lengths_q.max()) if max_seqlen_q is None else max_seqlen_q
    keys = int(lengths_k.max()) if max_seqlen_k is None else max_seqlen_k
    i = torch.arange(queries, device=q.device)[:, None]
    j = torch.arange(keys, device=q.device)
    real_q = i.view(1, queries) < lengths_q[:, None]
    real_k = j < lengths_k[:, None]
    padded_q = torch.zeros(batch, queries, heads, d, dtype=q.dtype, device=q.device)
    padded_k = torch.zeros(batch, keys, heads, d, dtype=q.dtype, device=q.device)
    padded_v = padded_k.masked_scatter(real_k[:, :, None, None], v).transpose(1, 2)
    padded_k = padded_k.masked_scatter(real_k[:, :, None, None], k).transpose(1, 2)
    padded_q = padded_q.masked_scatter(real_q[:, :, None, None], q).transpose(1, 2)
    scores = padded_q @ padded_k.mT * (float(d) ** -0.5 if scale is None else scale)
    hidden = (j > i) if causal else torch.zeros_like(j > i)
    if window is not None:
        if window[0] >= 0:
            hidden = hidden | (j < i - window[0])
        if window[1] >= 0:
            hidden = hidden | (j > i + window[1])
    hidden = hidden | real_k.logical_not()[:, None, None, :]
    scores = scores + torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, float("-inf"))
    nothing = (scores == float("-inf")).all(-1, keepdim=True)
    p = torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    if dropout > 0.0 and seed is not None:
        kept = philox.matrix_dropout_factor(batch * heads, queries, keys, dropout, seed, q.device)
        p = p * kept.view(batch, heads, queries, keys).to(p.dtype)
    elif dropout > 0.0:
        p = torch.dropout(p, dropout, True)
    out = (p @ padded_v).transpose(1, 2)
    row = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    sequence = torch.searchsorted(cu_seqlens_q[1:], row, right=True)
    return out[sequence, row - cu_seqlens_q[sequence]]
