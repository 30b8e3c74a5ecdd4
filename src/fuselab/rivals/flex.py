"""torch's FlexAttention, compiled: causal attention and windows as masks of blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fuselab.rivals.rival import HALF_AND_SINGLE, Rival


def _bind(flex: Any) -> Callable[..., Tensor]:
    kernel = torch.compile(flex.flex_attention, dynamic=False, fullgraph=True)

    @cache
    def blocks(
        queries: int, keys: int, causal: bool, left: int, right: int, device: torch.device
    ) -> Any:
        """Return which keys are seen; made once, as users make it."""

        def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            inside = (j <= i + right) if right >= 0 else (j >= 0)
            inside = inside & (j >= i - left) if left >= 0 else inside
            return inside & (j <= i) if causal else inside

        return flex.create_block_mask(seen, None, None, queries, keys, device=device)

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        window: int | tuple[int, int] | None = None,
        **_: Any,
    ) -> Tensor:
        left, right = (window - 1, window - 1) if isinstance(window, int) else window or (-1, -1)
        bounded = causal or left >= 0 or right >= 0
        of_blocks = None
        if bounded:
            of_blocks = blocks(q.shape[2], k.shape[2], causal, left, right, q.device)
        shared = q.shape[1] != k.shape[1]
        out: Tensor = kernel(q, k, v, block_mask=of_blocks, scale=scale, enable_gqa=shared)
        return out

    return attention


def _limit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    deterministic: bool = False,
    **_: Any,
) -> str | None:
    if mask is not None:
        return "it takes functions for masks"
    if dropout:
        return "it has no dropout"
    if q.shape[3] < 16:
        return f"the head dimension is {q.shape[3]}, it takes 16 and more"
    return "it promises no fixed order of sums" if deterministic else None


ATTENTION = Rival(
    "flex",
    "attention",
    "torch",
    "torch.nn.attention.flex_attention",
    _bind,
    dtypes=HALF_AND_SINGLE,
    limit=_limit,
    asked=True,
)
