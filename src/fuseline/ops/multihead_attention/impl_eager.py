"""A layer of self-attention as the study writes it, in plain torch operations."""

from __future__ import annotations

from typing import Optional, Tuple  # noqa: UP035  TorchScript knows no other form

from torch import Tensor

from fuseline.ops.attention.impl_eager import attention


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
    own = heads if kv_heads is None else kv_heads
    batch, rows, _ = x.shape
    columns = x @ w_qkv
    if b_qkv is not None:
        columns = columns + b_qkv
    of_all = columns.view(batch, rows, heads + 2 * own, -1).transpose(1, 2)
    q, k, v = of_all[:, :heads], of_all[:, heads : heads + own], of_all[:, heads + own :]
    out = attention(q, k, v, mask, causal, scale, window, dropout, seed)
    out = out.transpose(1, 2).reshape(batch, rows, -1) @ w_out
    return out if b_out is None else out + b_out
