"""Attention in torch's operations, one after another, with the matrix of scores in memory: it
serves every call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuseline.core.registration import contract
from fuseline.ops.attention.impl_args import Call, Grads, without_gradient
from fuseline.primitives.rms import statistics_dtype

_DEVICES = ("cpu", "cuda")


def formula(*args: Any) -> tuple[Tensor, Tensor]:
    """Return out and lse, open to autograd, vmap and jvp. Batches may have more dimensions."""
    c = Call(*args)
    p, lse = _probabilities(c)
    factor = c.kept()
    if factor is not None:
        p = p * factor.to(p.dtype)
    out = _apart(_grouped(p, c) @ c.v.to(p.dtype), c)
    return out.to(c.q.dtype), lse


def _probabilities(c: Call) -> tuple[Tensor, Tensor]:
    """Return the softmax of the scores, 0 where nothing is visible, and lse."""
    scores = _scores(c)
    if c.k.shape[-2] == 0:
        base = scores.new_zeros((*scores.shape[:-1], 1))
    else:
        base = scores.detach().amax(-1, keepdim=True)
    base = base.masked_fill(base == float("-inf"), 0.0)
    powers = torch.exp(scores - base)
    total = powers.sum(-1, keepdim=True)
    lse = (base + torch.log(total)).squeeze(-1)
    return powers / total.masked_fill(total == 0.0, 1.0), lse


def _scores(c: Call) -> Tensor:
    """Return the scores, -Inf where a key is hidden."""
    dtype = statistics_dtype(c.q)
    scores = _apart(_grouped(c.q.to(dtype), c) @ c.k.to(dtype).mT, c) * c.factor
    if c.mask is not None and c.mask.dtype == torch.bool:
        scores = scores.masked_fill(c.mask.logical_not(), float("-inf"))
    elif c.mask is not None:
        scores = scores + c.mask.to(dtype)
    hidden = c.hidden()
    return scores if hidden is None else scores.masked_fill(hidden, float("-inf"))


def _grouped(t: Tensor, c: Call) -> Tensor:
    """Return (..., heads, queries, N) as (..., heads of k, queries of all that share one, N)."""
    heads = c.k.shape[-3]
    return t if t.shape[-3] == heads else t.unflatten(-3, (heads, -1)).flatten(-3, -2)


def _apart(t: Tensor, c: Call) -> Tensor:
    """Return what `_grouped` made one."""
    heads, (*_, all_heads, queries, _) = c.k.shape[-3], c.q.shape
    shared = all_heads // heads
    return t if shared == 1 else t.unflatten(-2, (shared, queries)).flatten(-4, -3)


def run(*args: Any) -> Tensor:
    """Return out."""
    return fwd(*args)[0]


def fwd(*args: Any) -> tuple[Tensor, Tensor]:
    """Return out, in the layout of q, and lse."""
    out, lse = formula(*args)
    return torch.empty_like(args[0]).copy_(out), lse.contiguous()


def bwd(dout: Tensor, out: Tensor, lse: Tensor, *args: Any) -> Grads:
    """Return the gradients of q, k, v and, if wanted, the mask."""
    *of_call, need_dmask = args
    c = Call(*of_call)
    # Not from lse, whose rounding is a relative error of the powers.
    p, _ = _probabilities(c)
    dtype = p.dtype
    dout = dout.to(dtype)
    dp = _apart(_grouped(dout, c) @ c.v.to(dtype).mT, c)
    factor = c.kept()
    kept_p = p
    if factor is not None:
        factor = factor.to(dtype)
        kept_p, dp = p * factor, dp * factor
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    dv = _grouped(kept_p, c).mT @ _grouped(dout, c)
    scaled = _grouped(ds, c) * c.factor
    dk = scaled.mT @ _grouped(c.q.to(dtype), c)
    dq = without_gradient(_apart(scaled @ c.k.to(dtype), c), lse)
    given = zip((c.q, c.k, c.v), (dq, dk, dv), strict=True)
    dq, dk, dv = (torch.empty_like(t).copy_(g) for t, g in given)
    dmask = c.q.new_empty((0,))
    if need_dmask and c.mask is not None:
        dmask = ds.sum_to_size(c.mask.shape).to(c.mask.dtype).contiguous()
    return dq, dk, dv, dmask


def _unavailable(device_type: str) -> str | None:
    return None if device_type in _DEVICES else f"it needs q on cpu or cuda, got {device_type}"


PROVIDER = contract.Provider("math", contract.Kernels(run, fwd, bwd), _unavailable, by_rule=False)
