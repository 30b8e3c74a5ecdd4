"""Attention by torch's memory-efficient kernels: fp32 too, and masks with their gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core import contract
from fuseline.ops.attention.impl_args import (
    HALVES,
    Call,
    Grads,
    laid_as,
    readable,
    unserved,
    without_gradient,
)

_DTYPES = (torch.float32, *HALVES)
# Elements that rows of a mask, and of lse, are made multiples of.
_MASK_PITCH, _LSE_PITCH = 16, 32
_LONGEST = 1024
_FORWARD, _BACKWARD = (f"_scaled_dot_product_efficient_attention{end}" for end in ("", "_backward"))


def run(*args: Any) -> Tensor:
    """Return out."""
    return _forward(Call(*args), False)[0]


def fwd(*args: Any) -> tuple[Tensor, Tensor]:
    """Return out, in the layout of q, and lse."""
    return _forward(Call(*args), True)


def _forward(c: Call, save: bool) -> tuple[Tensor, Tensor]:
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention.default(
        *_operands(c), _mask(c), save, 0.0, c.causal, scale=c.factor
    )
    lse = lse[..., : c.q.shape[2]]
    if c.mask is not None:  # it may have +Inf there
        lse = lse.masked_fill(lse.isinf(), float("-inf"))
    return laid_as(out, c.q), lse.contiguous()


def bwd(dout: Tensor, out: Tensor, lse: Tensor, *args: Any) -> Grads:
    """Return the gradients of q, k, v and, if wanted, the mask."""
    *of_call, need_dmask = args
    c = Call(*of_call)
    none = c.q.new_empty((), dtype=torch.int64)
    # A query that sees nothing: its powers are to be 0.
    finite = lse if c.mask is None else lse.masked_fill(lse == float("-inf"), float("inf"))
    finite = F.pad(finite, (0, -lse.shape[-1] % _LSE_PITCH), value=float("inf"))
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    dq, dk, dv, dmask = backward(
        readable(dout), *_operands(c), _mask(c), readable(out), finite, none, none, 0.0,
        [True, True, True, need_dmask], c.causal, scale=c.factor,
    )  # fmt: skip
    made = c.q.new_empty((0,))
    if c.mask is not None:
        dq = without_gradient(dq, lse)
    if need_dmask and c.mask is not None:
        made = dmask.sum_to_size(c.mask.shape).to(c.mask.dtype).contiguous()
    return laid_as(dq, c.q), laid_as(dk, c.k), laid_as(dv, c.v), made


def _operands(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    return readable(c.q), readable(c.k), readable(c.v)


def _mask(c: Call) -> Tensor | None:
    """Return the mask as a summand for all scores, whose rows begin where the kernels need it."""
    mask = c.additive()
    if mask is None:
        return None
    batch, heads, queries, keys = *c.q.shape[:3], c.k.shape[2]
    rows = mask.new_empty((*mask.shape[:-1], keys + -keys % _MASK_PITCH))[..., :keys]
    return rows.copy_(mask).expand(batch, heads, queries, keys)


def _unsupported(direction: str, *args: Any) -> str | None:
    c = Call(*args)
    if reason := unserved(c, _DTYPES, _LONGEST):
        return reason
    pack = 16 // c.q.element_size()
    if c.q.shape[3] % pack:
        return f"the head dimension is {c.q.shape[3]}, expected a multiple of {pack}"
    if c.k.shape[1] != c.q.shape[1]:
        return "k and v have fewer heads than q"
    if any(n % pack for t in c[:3] for n in (*t.stride()[:3], t.storage_offset())):
        return "rows of q, k or v do not begin at multiples of 16 bytes"
    if c.mask is not None and c.mask.dtype not in (torch.bool, c.q.dtype):
        return f"mask has dtype {c.mask.dtype}, expected {c.q.dtype} or bool"
    return "its sums have no fixed order" if direction == "bwd" and c.deterministic else None


def _unavailable(device_type: str) -> str | None:
    if device_type != "cuda":
        return f"it needs q on cuda, got {device_type}"
    if torch.version.cuda is None:
        return "torch was built without CUDA"
    missing = [name for name in (_FORWARD, _BACKWARD) if not hasattr(torch.ops.aten, name)]
    return f"torch {torch.__version__} has no aten::{missing[0]}" if missing else None


PROVIDER = contract.Provider(
    "mem_efficient", contract.Kernels(run, fwd, bwd), _unavailable, _unsupported
)
