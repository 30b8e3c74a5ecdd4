"""FlashAttention: version 2, built with its own CUDA extension, and version 4 in the CuTe DSL.

Both by their public functions with their own autograd. The operator's `flash` and `fa4` are the
same projects' kernels behind our own backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fuselab.rivals.rival import HALF, Rival


def window_of(window: int | tuple[int, int] | None) -> tuple[int, int]:
    """Return how many keys before and behind a query it sees, -1 for all."""
    if window is None:
        return -1, -1
    left, right = (window - 1, window - 1) if isinstance(window, int) else window
    return max(left, -1), max(right, -1)


def heads_last(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return views of (B, H, S, D) as (B, S, H, D)."""
    return tuple(t.transpose(1, 2) for t in tensors)


def _limit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int, int] | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> str | None:
    if mask is not None:
        return "it takes no mask"
    if dropout:
        return "its dropout drops other elements"
    if (causal or window is not None) and q.shape[2] != k.shape[2]:
        return "causal and windows of other queries than keys end at the last of both"
    return None


def _bind_2(module: Any) -> Callable[..., Tensor]:
    kernel = module.flash_attn_func

    def attention(
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
    ) -> Tensor:
        out: Tensor = kernel(
            *heads_last(q, k, v),
            softmax_scale=scale,
            causal=causal,
            window_size=window_of(window),
            deterministic=deterministic,
        )
        return out.transpose(1, 2)

    return attention


def _bind_4(module: Any) -> Callable[..., Tensor]:
    kernel = module.flash_attn_func

    def attention(
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
    ) -> Tensor:
        left, right = (None if n < 0 else n for n in window_of(window))
        out, *_ = kernel(
            *heads_last(q, k, v),
            softmax_scale=scale,
            causal=causal,
            window_size=(left, right),
            deterministic=deterministic,
        )
        return out.transpose(1, 2)  # type: ignore[no-any-return]

    return attention


ATTENTION_2 = Rival(
    "flash_attn_2", "attention", "flash-attn", "flash_attn", _bind_2, dtypes=HALF, limit=_limit
)
ATTENTION_4 = Rival(
    *("flash_attn_4", "attention", "flash-attn-4", "flash_attn.cute.interface", _bind_4),
    dtypes=HALF,
    limit=_limit,
)
