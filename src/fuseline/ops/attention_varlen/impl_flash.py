"""Attention by torch's FlashAttention: FlashAttention-2 of packed sequences on a GPU; on a CPU its
own, a sequence at a time, and torch's operations for those that it does not serve.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuseline.core.registration import contract
from fuseline.core.selection.tuned import DIRECTIONS
from fuseline.ops.attention import impl_flash, impl_math
from fuseline.ops.attention.impl_args import Call, laid_as, readable
from fuseline.ops.attention_varlen.impl_args import Grads, Packed, batch_of, rows_of
from fuseline.primitives.rms import statistics_dtype

_FORWARD, _BACKWARD = "_flash_attention_forward", "_flash_attention_backward"


def _run(*args: Any) -> Tensor:
    return _fwd(*args)[0]


def _fwd(*args: Any) -> tuple[Tensor, Tensor]:
    c = Packed(*args)
    return _forward(c) if c.q.is_cuda else _forward_of_each(c)


def _bwd(dout: Tensor, out: Tensor, lse: Tensor, *args: Any) -> Grads:
    c = Packed(*args)
    backward = _backward if c.q.is_cuda else _backward_of_each
    return backward(c, dout, out, lse)


def _forward(c: Packed) -> tuple[Tensor, Tensor]:
    forward = torch.ops.aten._flash_attention_forward.default
    lengths = (c.cu_q, c.cu_k, c.max_q, c.max_k)
    scale = c.together().factor
    out, lse, *_ = forward(c.q, c.k, c.v, *lengths, 0.0, c.causal, False, scale=scale)
    return laid_as(out, c.q), lse.contiguous()


def _backward(c: Packed, dout: Tensor, out: Tensor, lse: Tensor) -> Grads:
    none = c.q.new_empty((), dtype=torch.int64)
    dq, dk, dv = torch.ops.aten._flash_attention_backward.default(
        readable(dout), c.q, c.k, c.v, readable(out), lse, c.cu_q, c.cu_k, c.max_q, c.max_k,
        0.0, c.causal, none, none, scale=c.together().factor,
    )  # fmt: skip
    return laid_as(dq, c.q), laid_as(dk, c.k), laid_as(dv, c.v)


def _forward_of_each(c: Packed) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(c.q)
    lse = out.new_empty((c.q.shape[1], c.q.shape[0]), dtype=statistics_dtype(c.q))
    for queries, _, call in c.sequences():
        own, sums = _serving(call).fwd(*call)  # type: ignore[misc]
        out[queries], lse[:, queries] = rows_of(own), sums.squeeze(0)
    return out, lse


def _backward_of_each(c: Packed, dout: Tensor, out: Tensor, lse: Tensor) -> Grads:
    dq, dk, dv = torch.empty_like(c.q), torch.empty_like(c.k), torch.empty_like(c.v)
    for queries, keys, call in c.sequences():
        own = (batch_of(dout[queries]), batch_of(out[queries]), lse[:, queries].unsqueeze(0))
        grads = _serving(call).bwd(*own, *call, False)  # type: ignore[misc]
        dq[queries], dk[keys], dv[keys] = map(rows_of, grads[:3])
    return dq, dk, dv


def _serving(call: Call) -> contract.Kernels:
    """Return what serves one sequence in both directions."""
    flash = impl_flash.PROVIDER
    refused = any(flash.unsupported and flash.unsupported(d, *call) for d in DIRECTIONS)
    return (impl_math.PROVIDER if refused else flash).kernels


def _unsupported(direction: str, *args: Any) -> str | None:
    c = Packed(*args)
    if any(t.is_quantized for t in c[:3]):  # torch crashes on a view of one
        return "q, k or v is quantized"
    if c.q.is_cuda and c.causal and not c.in_line:
        return "its causal attention of other queries than keys lets the last query see all"
    assert impl_flash.PROVIDER.unsupported is not None
    return impl_flash.PROVIDER.unsupported(direction, *c.together())


def _unavailable(device_type: str) -> str | None:
    if device_type == "cuda":
        missing = [name for name in (_FORWARD, _BACKWARD) if not hasattr(torch.ops.aten, name)]
        if missing:
            return f"torch {torch.__version__} has no aten::{missing[0]}"
    return impl_flash.PROVIDER.unavailable(device_type)


PROVIDER = contract.Provider(
    "flash", contract.Kernels(_run, _fwd, _bwd), _unavailable, _unsupported, by_rule=False
)
