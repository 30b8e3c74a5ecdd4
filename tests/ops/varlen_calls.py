"""What tests of packed attention share: problems, and their oracle."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import torch
from ops.attention_calls import near
from torch import Tensor

import fuseline
from fuseline import table

SPEC = table.load()["attention_varlen"]


class Varlen(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    cu_q: Tensor
    cu_k: Tensor
    dout: Tensor


def packed(
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    d: int,
    dtype: torch.dtype = torch.float32,
    *,
    heads: tuple[int, int] = (2, 2),
    layout: str = "",
    device: str = "cpu",
) -> Varlen:
    """Return random sequences of these lengths, and a gradient of the output."""

    def random(lengths: tuple[int, ...], heads: int) -> Tensor:
        t = torch.randn(sum(lengths), heads, d, device=device).to(dtype)
        if layout == "heads first":
            return t.transpose(0, 1).contiguous().transpose(0, 1)
        if layout == "gaps":
            return t.new_empty(sum(lengths), heads, d + 3)[..., 1 : d + 1].copy_(t)
        return t.mT.contiguous().mT if layout == "columns" else t

    def starts(lengths: tuple[int, ...]) -> Tensor:
        return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)

    cu_q = starts(queries)
    cu_k = cu_q if keys == queries else starts(keys)
    q, k, v = random(queries, heads[0]), random(keys, heads[1]), random(keys, heads[1])
    return Varlen(q, k, v, cu_q, cu_k, random(queries, heads[0]))


def results(call: Varlen, **options: Any) -> list[Tensor]:
    """Return the output and the gradients of q, k and v."""
    leaves = [t.detach().requires_grad_() for t in call[:3]]
    out = fuseline.attention_varlen(*leaves, call.cu_q, call.cu_k, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, call.dout)]


def oracle(call: Varlen, **options: Any) -> list[Tensor]:
    """Return the same in fp64."""
    how = {n: v for n, v in options.items() if n != "impl"}
    if isinstance(how.get("window"), int):
        how["window"] = (how["window"] - 1,) * 2
    leaves = [t.detach().double().requires_grad_() for t in call[:3]]
    out = SPEC.reference(*leaves, call.cu_q, call.cu_k, **how)
    return [out.detach(), *torch.autograd.grad(out, leaves, call.dout.double())]


def hold(call: Varlen, **options: Any) -> None:
    """Require the accuracy that attention has, see attention_calls.hold."""
    eager = results(call, **{**options, "impl": "eager"})
    near(results(call, **options), eager, oracle(call, **options), call.q, call.k, options)
