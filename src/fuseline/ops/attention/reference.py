"""The oracle: the formula in fp64. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.primitives import philox


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    deterministic: bool = False,
) -> Tensor:
    """Return softmax(scale * q k^T + mask) v, for fp64 inputs."""
    (batch, heads, queries, d), keys = q.shape, k.shape[2]
    k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    z = q @ k.mT * (d**-0.5 if scale is None else scale)
    if mask is not None:
        z = torch.where(mask, z, -torch.inf) if mask.dtype == torch.bool else z + mask
    i, j = torch.arange(queries, device=q.device)[:, None], torch.arange(keys, device=q.device)
    left, right = window or (-1, -1)
    seen = (j <= i) | (not causal)
    seen = seen & ((j >= i - left) | (left < 0)) & ((j <= i + right) | (right < 0))
    z = torch.where(seen, z, -torch.inf)
    most = z.detach().amax(-1, keepdim=True)
    e = torch.exp(z - torch.where(most > -torch.inf, most, 0.0))
    total = e.sum(-1, keepdim=True)
    p = e / torch.where(total > 0, total, 1.0)
    if dropout > 0 and seed is not None:
        kept = philox.matrix_dropout_factor(batch * heads, queries, keys, dropout, seed, q.device)
        p = p * kept.view(p.shape).to(p.dtype)
    return p @ v
