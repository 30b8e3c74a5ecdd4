"""The oracle: the formula in fp64. Never a fallback."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.primitives import philox


def multihead_attention(
    x: Tensor,
    w_qkv: Tensor,
    b_qkv: Tensor | None,
    w_out: Tensor,
    b_out: Tensor | None,
    heads: int,
    kv_heads: int | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    deterministic: bool = False,
) -> Tensor:
    """Return (softmax(scale * q k^T + mask) v of all heads) @ w_out + b_out, for fp64 inputs."""
    own, (batch, rows, _) = kv_heads or heads, x.shape
    columns = x @ w_qkv + (0.0 if b_qkv is None else b_qkv)
    of_all = columns.unflatten(2, (heads + 2 * own, -1))
    q, k, v = (t.transpose(1, 2) for t in of_all.split((heads, own, own), 2))
    k, v = (t.repeat_interleave(heads // own, 1) for t in (k, v))
    z = q @ k.mT * (q.shape[3] ** -0.5 if scale is None else scale)
    i, j = torch.arange(rows, device=x.device)[:, None], torch.arange(rows, device=x.device)
    left, right = window or (-1, -1)
    seen = (j <= i) | (not causal)
    seen = seen & ((j >= i - left) | (left < 0)) & ((j <= i + right) | (right < 0))
    if mask is not None and mask.dtype == torch.bool:
        seen = seen & mask
    elif mask is not None:
        z = z + mask
    z = torch.where(seen, z, -torch.inf)
    nothing = (z == -torch.inf).all(-1, keepdim=True)
    p = torch.where(nothing, 0.0, z).softmax(-1) * ~nothing
    if dropout > 0 and seed is not None:
        kept = philox.matrix_dropout_factor(batch * heads, rows, rows, dropout, seed, x.device)
        p = p * kept.view(p.shape).to(p.dtype)
    y: Tensor = (p @ v).transpose(1, 2).flatten(2) @ w_out
    return y if b_out is None else y + b_out
