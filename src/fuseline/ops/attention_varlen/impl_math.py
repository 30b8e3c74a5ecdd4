"""Attention in torch's operations, on a batch that is as long as its longest sequence: it serves
every call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuseline.core.registration import contract
from fuseline.ops.attention import impl_math
from fuseline.ops.attention.impl_args import Call
from fuseline.ops.attention_varlen.impl_args import Grads, Packed, Places


def formula(*args: Any) -> Tensor:
    """Return out, open to autograd and jvp."""
    call, queries, _ = _padded(Packed(*args))
    return queries.packed(impl_math.formula(*call)[0])


def _padded(c: Packed) -> tuple[Call, Places, Places]:
    """Return the call of the batch, and where its queries and its keys lie."""
    queries = Places.of(c.cu_q, c.q.shape[0], c.max_q)
    keys = Places.of(c.cu_k, c.k.shape[0], c.max_k)
    seen = keys.there[:, None, None]
    call = c.of(queries.padded(c.q), keys.padded(c.k), keys.padded(c.v), seen)
    return call, queries, keys


def _run(*args: Any) -> Tensor:
    return _fwd(*args)[0]


def _fwd(*args: Any) -> tuple[Tensor, Tensor]:
    call, queries, _ = _padded(Packed(*args))
    out, lse = impl_math.formula(*call)
    out = torch.empty_like(args[0]).copy_(queries.packed(out))
    return out, queries.packed(lse.unsqueeze(-1)).squeeze(-1).T.contiguous()


def _bwd(dout: Tensor, out: Tensor, lse: Tensor, *args: Any) -> Grads:
    c = Packed(*args)
    call, queries, keys = _padded(c)
    rows = (queries.padded(t) for t in (dout, out, lse.T.unsqueeze(-1)))
    dout, out, lse = rows
    grads = impl_math.bwd(dout, out, lse.squeeze(-1), *call, False)
    each = zip(c[:3], grads[:3], (queries, keys, keys), strict=True)
    dq, dk, dv = (torch.empty_like(t).copy_(places.packed(g)) for t, g, places in each)
    return dq, dk, dv


PROVIDER = contract.Provider(
    "math", contract.Kernels(_run, _fwd, _bwd), impl_math.PROVIDER.unavailable, by_rule=False
)
