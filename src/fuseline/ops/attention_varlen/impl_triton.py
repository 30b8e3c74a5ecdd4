"""Attention's kernels in Triton on packed sequences, which they read where these lie."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fuseline.ops.attention import impl_triton
from fuseline.ops.attention_varlen.impl_args import Grads, Packed, batch_of, rows_of
from fuseline.primitives.triton import Wrap


def fwd(*args: Any, wrap: Wrap | None = None) -> tuple[Tensor, Tensor]:
    """Return out and lse."""
    c = Packed(*args)
    out, lse = impl_triton.fwd_of(c.together(), wrap, _lengths(c))
    return rows_of(out), lse.squeeze(0)


def bwd(dout: Tensor, out: Tensor, lse: Tensor, *args: Any, wrap: Wrap | None = None) -> Grads:
    """Return the gradients of q, k and v."""
    c = Packed(*args)
    made = (batch_of(dout), batch_of(out), lse.unsqueeze(0))
    grads = impl_triton.bwd_of(*made, c.together(), False, wrap, _lengths(c))
    dq, dk, dv = map(rows_of, grads[:3])
    return dq, dk, dv


def _lengths(c: Packed) -> impl_triton.Packed:
    return impl_triton.Packed(c.cu_q, c.cu_k, c.max_q, c.max_k)
