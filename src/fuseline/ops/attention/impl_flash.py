"""Attention by torch's FlashAttention: FlashAttention-2 on a GPU, its own on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuseline.core.registration import contract
from fuseline.ops.attention.impl_args import (
    HALVES,
    Call,
    Grads,
    in_packs,
    laid_as,
    readable,
    unserved,
    without_gradient,
)

_LONGEST = 256
# Those of a vector: of the rest it takes the maximum without NaN.
_FEWEST_KEYS = 16
_NO_DMASK = "it gives a mask no gradient"
_CPU_DTYPES = (torch.float64, torch.float32, *HALVES)
_NAMES = {"cuda": "_scaled_dot_product_flash_attention"}
_NAMES["cpu"] = _NAMES["cuda"] + "_for_cpu"


def run(*args: Any) -> Tensor:
    """Return out."""
    return fwd(*args)[0]


def fwd(*args: Any) -> tuple[Tensor, Tensor]:
    """Return out, in the layout of q, and lse."""
    c = Call(*args)
    forward = _forward if c.q.is_cuda else _forward_on_cpu
    out, lse = forward(c)
    return laid_as(out, c.q), lse.contiguous()


def bwd(dout: Tensor, out: Tensor, lse: Tensor, *args: Any) -> Grads:
    """Return the gradients of q, k and v."""
    *of_call, need_dmask = args
    if need_dmask:
        raise RuntimeError(f"attention: impl 'flash' cannot run here: {_NO_DMASK}")
    c = Call(*of_call)
    backward = _backward if c.q.is_cuda else _backward_on_cpu
    dq, dk, dv = backward(c, readable(dout), readable(out), lse)
    return laid_as(dq, c.q), laid_as(dk, c.k), laid_as(dv, c.v), c.q.new_empty((0,))


def _forward(c: Call) -> tuple[Tensor, Tensor]:
    forward = torch.ops.aten._scaled_dot_product_flash_attention.default
    out, lse, *_ = forward(c.q, c.k, c.v, 0.0, c.causal, False, scale=c.factor)
    return out, lse


def _backward(c: Call, dout: Tensor, out: Tensor, lse: Tensor) -> Any:
    none = c.q.new_empty((), dtype=torch.int64)
    lengths = (None, None, c.q.shape[2], c.k.shape[2])
    return torch.ops.aten._scaled_dot_product_flash_attention_backward.default(
        dout, c.q, c.k, c.v, out, lse, *lengths, 0.0, c.causal, none, none, scale=c.factor
    )


def _operands(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v as the CPU's kernels must have them: they look at no other stride."""
    return readable(c.q), readable(c.k), readable(c.v)


def _mask(c: Call) -> Tensor | None:
    """Return the mask as they must have it, of four dimensions."""
    mask = c.additive()
    return mask if mask is None else mask.view((1,) * (4 - mask.dim()) + mask.shape)


def _forward_on_cpu(c: Call) -> tuple[Tensor, Tensor]:
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    out, lse = forward(*_operands(c), 0.0, c.causal, attn_mask=_mask(c), scale=c.factor)
    if c.mask is not None:  # it has 0 there
        lse = lse.masked_fill(c.sees_nothing(), float("-inf"))
    # It makes 0 of what an infinite score makes NaN.
    return out.masked_fill_((lse == float("inf")).unsqueeze(-1), float("nan")), lse


def _backward_on_cpu(c: Call, dout: Tensor, out: Tensor, lse: Tensor) -> Any:
    # What a query that sees nothing has makes NaN of powers that are to be 0.
    finite = lse if c.mask is None else lse.masked_fill(lse == float("-inf"), 0.0)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    dq, dk, dv = backward(
        dout, *_operands(c), out, finite, 0.0, c.causal, attn_mask=_mask(c), scale=c.factor
    )
    return dq if c.mask is None else without_gradient(dq, lse), dk, dv


# What is active in the registry of torch.nn.attention, in versions that have one.
_in_its_place = getattr(torch.nn.attention, "current_flash_attention_impl", lambda: None)


def _unsupported(direction: str, *args: Any) -> str | None:
    c = Call(*args)
    if not c.q.is_cuda:
        if reason := unserved(c, _CPU_DTYPES, c.q.shape[3]):
            return reason
        if c.k.shape[2] < _FEWEST_KEYS:
            return f"of fewer than {_FEWEST_KEYS} keys it makes 0 of NaN"
        wanted = direction == "bwd" and c.mask is not None and c.mask.requires_grad
        return _NO_DMASK if wanted else None
    if other := _in_its_place():
        return f"torch.nn.attention runs {other!r} in its place"
    if reason := unserved(c, HALVES, _LONGEST):
        return reason
    if c.mask is not None:
        return "it takes no mask"
    if c.q.shape[3] % 8:
        return f"the head dimension is {c.q.shape[3]}, expected a multiple of 8"
    if c.causal and c.q.shape[2] != c.k.shape[2]:
        return "its causal attention of other queries than keys lets the last query see all"
    if not in_packs(c.q, c.k, c.v):
        return "rows of q, k or v do not begin at multiples of 16 bytes, or are repeated"
    return "its sums have no fixed order" if direction == "bwd" and c.deterministic else None


def _unavailable(device_type: str) -> str | None:
    if device_type not in _NAMES:
        return f"it needs q on cpu or cuda, got {device_type}"
    name = _NAMES[device_type]
    missing = [n for n in (name, f"{name}_backward") if not hasattr(torch.ops.aten, n)]
    if missing:
        return f"torch {torch.__version__} has no aten::{missing[0]}"
    if device_type == "cuda" and torch.version.cuda is None:
        return "torch was built without CUDA"
    return None


PROVIDER = contract.Provider(
    "flash", contract.Kernels(run, fwd, bwd), _unavailable, _unsupported, by_rule=False
)
