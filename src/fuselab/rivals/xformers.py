"""xFormers: its choice among CUTLASS's, FlashAttention's and other kernels of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fuselab.rivals.flash_attn import heads_last
from fuselab.rivals.rival import Rival


def _bind(ops: Any) -> Callable[..., Tensor]:
    kernel, lower = ops.memory_efficient_attention, ops.LowerTriangularMask

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> Tensor:
        bias = lower() if causal else None
        out: Tensor = kernel(*heads_last(q, k, v), attn_bias=bias, scale=scale)
        return out.transpose(1, 2)

    return attention


def _limit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int, int] | None = None,
    dropout: float = 0.0,
    seed: Any = None,
    deterministic: bool = False,
) -> str | None:
    if mask is not None:
        return "its masks have an alignment of their own, and only some kernels a gradient for them"
    if window is not None:
        return "its windows end at the last query and key"
    if k.shape[1] != q.shape[1]:
        return "heads that share keys have no backward"
    if dropout:
        return "its dropout drops other elements"
    return "it promises no fixed order of sums" if deterministic else None


ATTENTION = Rival("xformers", "attention", "xformers", "xformers.ops", _bind, limit=_limit)
