"""The oracle: the formula in fp64. Never a fallback."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fuseline.primitives import philox

# Scores that are kept at once, in several tensors of that size.
_AT_ONCE = 1 << 25


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
    """Return softmax(scale * q k^T + mask) v, for fp64 inputs.

    Many scores, without mask and dropout, are computed in parts of some heads, forward and once
    more backward, so that there is no matrix of all.
    """
    how = (mask, causal, scale, window, dropout, seed)
    scores = q.numel() // q.shape[3] * k.shape[2]
    if scores <= _AT_ONCE or mask is not None or dropout > 0:
        return _of_all(q, k, v, *how)
    heads = [t.reshape(-1, 1, *t.shape[2:]) for t in (k, v)]
    queries = q.reshape(heads[0].shape[0], -1, *q.shape[2:])
    some = max(1, _AT_ONCE * len(queries) // scores)
    parts = zip(*(t.split(some) for t in (queries, *heads)), strict=True)
    as_one = partial(checkpoint, _of_all, use_reentrant=False, preserve_rng_state=False)
    found = [as_one(*part, *how) for part in parts]
    return torch.cat(found).view(q.shape)


def _of_all(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    window: tuple[int, int] | None,
    dropout: float,
    seed: int | None,
) -> Tensor:
    (batch, heads, queries, d), keys = q.shape, k.shape[2]
    k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    z = (q * (d**-0.5 if scale is None else scale)) @ k.mT
    if mask is not None:
        z = torch.where(mask, z, -torch.inf) if mask.dtype == torch.bool else z + mask
    if causal or window:
        i, j = torch.arange(queries, device=q.device)[:, None], torch.arange(keys, device=q.device)
        left, right = window or (-1, -1)
        seen = (j <= i) | (not causal)
        seen = seen & ((j >= i - left) | (left < 0)) & ((j <= i + right) | (right < 0))
        z = z.masked_fill(~seen, -torch.inf)
    nothing = z.detach().amax(-1, keepdim=True) == -torch.inf
    if nothing.any():
        p = torch.softmax(z.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    else:  # two passes fewer over all scores
        p = torch.softmax(z, -1)
    if dropout > 0 and seed is not None:
        kept = philox.matrix_dropout_factor(batch * heads, queries, keys, dropout, seed, q.device)
        p = p * kept.view(p.shape).to(p.dtype)
    return p @ v
