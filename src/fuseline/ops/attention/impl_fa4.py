"""Attention by FlashAttention-4 (flash-attn-4, an extra), which compiles its kernels as they are
needed.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from fuseline.core import native
from fuseline.core.registration import contract
from fuseline.ops.attention.impl_args import HALVES, Call, Grads, in_packs, laid_as, unserved

_LONGEST = 128


@cache
def _interface() -> Any:
    return importlib.import_module("flash_attn.cute.interface")


def _heads_last(*tensors: Tensor) -> list[Tensor]:
    return [t.transpose(1, 2) for t in tensors]


def run(*args: Any) -> Tensor:
    """Return out."""
    return fwd(*args)[0]


def fwd(*args: Any) -> tuple[Tensor, Tensor]:
    """Return out, in the layout of q, and lse."""
    c = Call(*args)
    forward = _interface()._flash_attn_fwd
    with torch.no_grad():
        out, lse, *_ = forward(
            *_heads_last(c.q, c.k, c.v), softmax_scale=c.factor, causal=c.causal, return_lse=True
        )
    return laid_as(out.transpose(1, 2), c.q), lse


def bwd(dout: Tensor, out: Tensor, lse: Tensor, *args: Any) -> Grads:
    """Return the gradients of q, k and v."""
    c = Call(*args[:-1])
    if not in_packs(dout):
        native.count_copy()
        dout = dout.contiguous()
    tensors = _heads_last(c.q, c.k, c.v, out, dout)
    how = {"softmax_scale": c.factor, "causal": c.causal, "deterministic": c.deterministic}
    grads = _interface()._flash_attn_bwd(*tensors, lse, **how)
    dq, dk, dv = _heads_last(*grads[:3])
    return laid_as(dq, c.q), laid_as(dk, c.k), laid_as(dv, c.v), c.q.new_empty((0,))


def _unsupported(direction: str, *args: Any) -> str | None:
    c = Call(*args)
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
    return "its sums were not tried in a fixed order" if c.deterministic else None


def _unavailable(device_type: str) -> str | None:
    if device_type != "cuda":
        return f"it needs q on cuda, got {device_type}"
    try:
        metadata.version("flash-attn-4")  # flash-attn 2 may have the folder, without what it needs
    except metadata.PackageNotFoundError:
        return "flash-attn-4 is not installed: pip install 'fuseline[fa4]'"
    return None


PROVIDER = contract.Provider("fa4", contract.Kernels(run, fwd, bwd), _unavailable, _unsupported)
