"""Whether a result of hostile arguments is right: that of plain ones, and that of the formula."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.autograd.forward_ad as fwd_ad
from ops.hostile_tensors import Wrapper
from torch import Tensor
from torch._subclasses import FakeTensor

from fuseline import table
from fuseline.core.spec import OpSpec
from fuseline.testing import Judge, accuracy

SPECS = table.load()
# What divides by a sum last overflows where the formula, which divides first, is finite.
SUMS_FIRST = ("attention",)
# The schema takes a bool for an int, and None for a bool.
CASTS = {"bool": bool, "int": int, "float": float}
CASTS["Optional[float]"] = lambda v: v if v is None else float(v)
# Roundings of a result whose sums were added in another order, in eps * max|result|.
ROUNDINGS = 32
# The budgets are of the spec's cases; so many draws come to rarer roundings.
TAIL = 2


def readable(t: Tensor) -> bool:
    """Whether the tensor has values: those of the others are not looked at."""
    return not (isinstance(t, FakeTensor) or t.is_meta or torch._is_functional_tensor(t))


def plain(a: Any) -> Any:
    """The argument as a contiguous tensor of its own, of the same values and dtype."""
    if not isinstance(a, Tensor):
        return a
    if isinstance(a, Wrapper):
        a = a.inner
    if fwd_ad._current_level >= 0:
        a = fwd_ad.unpack_dual(a).primal
    a = a.detach().as_subclass(Tensor).resolve_conj().resolve_neg()
    return torch.empty(a.shape, dtype=a.dtype).copy_(a)


def compare(name: str, op: Any, args: list[Any], results: tuple[Any, ...]) -> str | None:
    """What is wrong with the results, in words; None if nothing is."""
    if not all(readable(t) for t in (*args, *results) if isinstance(t, Tensor)):
        return None
    name_of_all = op.name().split("::")[1].partition("__")[0]
    if hasattr(torch.ops.fuseline, name_of_all):  # else the operator is its own plain one
        op = getattr(torch.ops.fuseline, name_of_all).default
    same, results = tuple(map(plain, args)), tuple(map(plain, results))
    with fwd_ad._set_fwd_grad_enabled(False), torch.no_grad():
        for at, (got, want) in enumerate(zip(results, accuracy.as_tuple(op(*same)), strict=True)):
            if why := _apart(got, want):
                return f"result {at} is not that of plain arguments: {why}"
        spec = None if results[0].dim() > 64 else SPECS.get(name)  # isfinite() takes so many
        return spec and _off_formula(spec, op, same, results)


def _apart(got: Tensor, want: Tensor) -> str | None:
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{tuple(got.shape)} {got.dtype}, expected {tuple(want.shape)} {want.dtype}"
    eps = torch.finfo(want.dtype).eps if want.is_floating_point() else 0.0
    got, want = got.double().view(-1), want.double().view(-1)
    largest = want[want.isfinite()].abs().amax().item() if want.isfinite().any() else 0.0
    if torch.allclose(got, want, rtol=ROUNDINGS * eps, atol=ROUNDINGS * eps * largest,
                      equal_nan=True):  # fmt: skip
        return None
    return f"off by {(got - want).abs().amax().item():.3g}, of at most {largest:.3g}"


def _as_bad(mine: accuracy.ErrorFigures, eager: accuracy.ErrorFigures, dtype: torch.dtype) -> bool:
    """Whether eager is no better: terms cancel (an eps of -1), or a scale of 1e300 overflows."""
    return not eager.max_ulp < min(accuracy.HOPELESS / torch.finfo(dtype).eps, mine.max_ulp)


def _off_formula(
    spec: OpSpec, op: Any, args: tuple[Any, ...], results: tuple[Tensor, ...]
) -> str | None:
    inputs = {
        a.name: CASTS.get(str(a.type), lambda v: v)(v)
        for a, v in zip(op._schema.arguments, args, strict=False)
    }
    if (own := inputs.pop("seed_tensor", None)) is not None:
        inputs["seed"] = int(own)
    if "left" in inputs:
        inputs["window"] = (inputs.pop("left"), inputs.pop("right"))
    if "dim" in inputs:
        dim = inputs.pop("dim")
        inputs = {n: t.movedim(dim, -1) for n, t in inputs.items()}
        results = tuple(t.movedim(dim, -1) for t in results)
    if any(t.numel() == 0 for t in args if isinstance(t, Tensor)):
        return None  # the formula's maximum needs an element
    outputs = {f"out{i}": y for i, y in enumerate(results)}
    judge = Judge(spec, inputs, "fwd")
    mine, yardstick = judge.errors(outputs)
    if spec.name in SUMS_FIRST and any(
        isinstance(t, Tensor) and t.is_floating_point() and (t.abs() > 1e37).any() for t in args
    ):
        return None
    if yardstick is None:
        return None  # eager refuses these
    for n, y in outputs.items():
        if not y.is_floating_point():
            if mine[n].max_ulp == math.inf:
                return f"{n} is not that of the formula"
            continue
        if _as_bad(mine[n], yardstick[n], y.dtype):
            continue
        fair = replace(mine[n], max_ulp=mine[n].max_ulp / TAIL, scaled=mine[n].scaled / TAIL)
        if why := judge.reason(n, y.dtype, fair, yardstick[n]):
            return f"{n}: {TAIL} times the budget: {why}"
    return None
