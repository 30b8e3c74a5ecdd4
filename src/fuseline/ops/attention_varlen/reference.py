"""The oracle: the formula in fp64, a sequence at a time. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.primitives import philox


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    deterministic: bool = False,
) -> Tensor:
    """Return softmax(scale * q k^T) v of each sequence, for fp64 inputs."""
    heads = q.shape[1]
    k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    factor = q.shape[2] ** -0.5 if scale is None else scale
    left, right = window or (-1, -1)
    bounds = zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True)
    (first_q, first_k), *ends = bounds
    parts = [q[:0] * 1.0]
    for number, (end_q, end_k) in enumerate(ends):
        one, keys, values = q[first_q:end_q], k[first_k:end_k], v[first_k:end_k]
        first_q, first_k = end_q, end_k
        z = one.transpose(0, 1) @ keys.permute(1, 2, 0) * factor
        i = torch.arange(z.shape[1], device=q.device)[:, None]
        j = torch.arange(z.shape[2], device=q.device)
        seen = (j <= i) | (not causal)
        seen = seen & ((j >= i - left) | (left < 0)) & ((j <= i + right) | (right < 0))
        some = seen.any(-1)
        p = torch.where(seen, z, -torch.inf)
        p = torch.where(some[:, None], p, 0.0).softmax(-1) * some[:, None]
        if dropout > 0 and seed is not None:
            matrices = heads * (number + 1)
            sizes = (matrices, z.shape[1], z.shape[2])
            kept = philox.matrix_dropout_factor(*sizes, dropout, seed, q.device)
            p = p * kept[-heads:].to(p.dtype)
        parts.append((p @ values.transpose(0, 1)).transpose(0, 1))
    return torch.cat(parts)
