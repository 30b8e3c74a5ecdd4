"""Attention by torch's products, with the matrix of scores in memory and our kernels between them:
for heads longer than those of kernels that do without it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuseline.ops.attention.impl_args import Call, Grads, laid_as
from fuseline.primitives.triton.attention.kernels import BOOL_MASK, FLOAT_MASK, NO_MASK
from fuseline.primitives.triton.attention.unfused import gradient_kernel, softmax_kernel
from fuseline.primitives.triton.launch import launch
from fuseline.primitives.triton.rows import power_of_2, vec_of

# Scores that a program has at once.
_MOST = 4096


def fwd(*args: Any) -> tuple[Tensor, Tensor]:
    """Return out, in the layout of q, and lse."""
    c = Call(*args)
    p = _scores(c)
    lse = c.q.new_empty(c.q.shape[:3], dtype=torch.float32)
    mask = _mask(c)
    _launch(softmax_kernel, (p, mask, lse), mask, c)
    return laid_as(torch.bmm(p, _matrices(c.v)).view(c.q.shape), c.q), lse


def bwd(dout: Tensor, out: Tensor, lse: Tensor, *args: Any) -> Grads:
    """Return the gradients of q, k and v."""
    c = Call(*args[:-1])
    q, k, v, dout = _queries(c.q, c), _matrices(c.k), _matrices(c.v), _queries(dout, c)
    p, ds = _scores(c), torch.bmm(dout, v.mT)
    mask = _mask(c)
    _launch(gradient_kernel, (p, ds, mask), mask, c)
    dq, dk, dv = _scaled(ds, k, c), _scaled(ds.mT, q, c), torch.bmm(p.mT, dout)
    dq, dk, dv = (laid_as(g.view(t.shape), t) for g, t in zip((dq, dk, dv), c[:3], strict=True))
    return dq, dk, dv, c.q.new_empty((0,))


def _scores(c: Call) -> Tensor:
    """Return the scaled products of the queries that share a head of k with its keys."""
    return _scaled(_queries(c.q, c), _matrices(c.k).mT, c)


def _scaled(a: Tensor, b: Tensor, c: Call) -> Tensor:
    out = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    return torch.baddbmm(out, a, b, beta=0, alpha=c.factor, out=out)


def _matrices(t: Tensor) -> Tensor:
    return t.reshape(-1, *t.shape[2:])


def _queries(t: Tensor, c: Call) -> Tensor:
    """Return (batch * heads of k, queries of all heads that share it, D)."""
    return t.reshape(-1, c.q.shape[1] // c.k.shape[1] * t.shape[2], t.shape[3])


def _mask(c: Call) -> Tensor | None:
    """Return the mask as if there were one for each score; of bytes for bools."""
    if c.mask is None:
        return None
    mask = c.mask.resolve_neg().expand(*c.q.shape[:3], c.k.shape[2])
    return mask.view(torch.uint8) if mask.dtype == torch.bool else mask


def _launch(kernel: Any, tensors: tuple[Tensor | None, ...], mask: Tensor | None, c: Call) -> None:
    batch, heads, queries, _ = c.q.shape
    keys, (left, right) = c.k.shape[2], c.band
    kind = NO_MASK
    if c.mask is not None:
        kind = BOOL_MASK if c.mask.dtype == torch.bool else FLOAT_MASK
    meta = {
        "MASK": kind.value,
        "LEFT": left >= 0,
        "RIGHT": right >= 0,
        "VEC": vec_of(c.q.dtype, keys),
        "BLOCK": min(power_of_2(keys), _MOST),
        "num_warps": 4 if keys <= _MOST // 2 else 8,
    }
    strides = (0, 0, 0, 0) if mask is None else mask.stride()
    numbers = (heads, queries, keys, left, right, *strides)
    launch(kernel, (batch * heads * queries,), (*tensors, *numbers), meta)
