"""FlashAttention: version 2, built with its own CUDA extension, and version 4 in the CuTe DSL.

Both by their public functions with their own autograd. The operator's `flash` and `fa4` are the
same projects' kernels behind our own backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuselab.rivals.rival import HALF, Rival

_OTHER_ELEMENTS = "its dropout drops other elements"
_OTHER_ENDS = "causal and windows of other queries than keys end at the last of both"


def _window(
    window: int | tuple[int, int] | None, unbounded: int | None
) -> tuple[int | None, int | None]:
    """Return how many keys before and behind a query it sees."""
    if window is None:
        return unbounded, unbounded
    left, right = (window - 1, window - 1) if isinstance(window, int) else window
    return (unbounded if left < 0 else left), (unbounded if right < 0 else right)


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
        return _OTHER_ELEMENTS
    if (causal or window is not None) and q.shape[2] != k.shape[2]:
        return _OTHER_ENDS
    return None


def _limit_of_varlen(
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    causal: bool = False,
    window: int | tuple[int, int] | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> str | None:
    if dropout:
        return _OTHER_ELEMENTS
    if (causal or window is not None) and not torch.equal(cu_seqlens_q, cu_seqlens_k):
        return _OTHER_ENDS
    return None


def _result(found: Any) -> Tensor:
    """Return the output of a kernel that may give the rows' logarithms, too."""
    out: Tensor = found[0] if isinstance(found, tuple) else found
    return out


def _bind(unbounded: int | None) -> Callable[[Any], Callable[..., Tensor]]:
    """Return the bind of attention; `unbounded`: how its window says that a side has no end."""

    def bind(module: Any) -> Callable[..., Tensor]:
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
            found = kernel(
                *heads_last(q, k, v),
                softmax_scale=scale,
                causal=causal,
                window_size=_window(window, unbounded),
                deterministic=deterministic,
            )
            return _result(found).transpose(1, 2)

        return attention

    return bind


def _bind_varlen(unbounded: int | None) -> Callable[[Any], Callable[..., Tensor]]:
    def bind(module: Any) -> Callable[..., Tensor]:
        kernel = module.flash_attn_varlen_func

        def attention_varlen(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            cu_seqlens_q: Tensor,
            cu_seqlens_k: Tensor,
            max_seqlen_q: int,
            max_seqlen_k: int,
            causal: bool = False,
            scale: float | None = None,
            window: int | tuple[int, int] | None = None,
            dropout: float = 0.0,
            seed: Any = None,
            deterministic: bool = False,
        ) -> Tensor:
            found = kernel(
                *(q, k, v),
                cu_seqlens_q=cu_seqlens_q,
                cu_seqlens_k=cu_seqlens_k,
                max_seqlen_q=max_seqlen_q,
                max_seqlen_k=max_seqlen_k,
                softmax_scale=scale,
                causal=causal,
                window_size=_window(window, unbounded),
                deterministic=deterministic,
            )
            return _result(found)

        return attention_varlen

    return bind


def _rivals(name: str, package: str, module: str, unbounded: int | None) -> tuple[Rival, Rival]:
    return (
        Rival(*(name, "attention", package, module, _bind(unbounded)), dtypes=HALF, limit=_limit),
        Rival(
            *(name, "attention_varlen", package, module, _bind_varlen(unbounded)),
            dtypes=(*HALF, torch.int32),
            limit=_limit_of_varlen,
        ),
    )


ALL = (
    *_rivals("flash_attn_2", "flash-attn", "flash_attn", -1),
    *_rivals("flash_attn_4", "flash-attn-4", "flash_attn.cute.interface", None),
)
