"""Whether a result of hostile arguments is right: that of plain ones, and that of the formula."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import torch
import torch.autograd.forward_ad as fwd_ad
from ops.hostile_tensors import Wrapper
from torch import Tensor
from torch._subclasses import FakeTensor

from fuseline import table
from fuseline.core.specs.spec import OpSpec
from fuseline.primitives.rms import statistics_dtype
from fuseline.testing import Judge
from fuseline.testing.oracle import accuracy
from fuseline.testing.oracle.conditioning import nearby

SPECS = table.load()
# What divides by a sum last overflows where the formula, which divides first, is finite.
SUMS_FIRST = re.compile("attention")
# The schema takes a bool for an int, and None for a bool.
CASTS = {"bool": bool, "int": int, "float": float}
CASTS["Optional[float]"] = lambda v: v if v is None else float(v)
# Roundings of a result whose sums were added in another order, in eps * max|result|.
ROUNDINGS = 32
# What adds many terms in an order that a library chose, and its implementations that take fp64.
SUMS = re.compile("matmul|mlp|conv|attention")
WIDE = ("__aten", "__math")
# Sums of sums, by factors that may hide what overflowed; those divided by their size do in all.
SUMS_OF_SUMS = re.compile("mlp|matmul_matmul|attention|conv_bn")
NORMALIZED = re.compile("attention|conv_bn")
# Torch's norms square what they are given, where ours scale it first.
SQUARING = re.compile("(layer|rms)_norm(_fwd|_bwd)?__aten")
# It takes three factors in two orders: one by its kernels, one in a graph and in the formula.
REGROUPED = "matmul_matmul"
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
    squaring = SQUARING.search(op.name())
    op, wide = _plain_and_wide(op)
    same, results = tuple(map(plain, args)), tuple(map(plain, results))
    with fwd_ad._set_fwd_grad_enabled(False), torch.no_grad():
        try:
            wanted = accuracy.as_tuple(op(*same))
        except RuntimeError:  # it serves other layouts alone
            op, wanted = wide, accuracy.as_tuple(wide(*same))
        for at, (got, want) in enumerate(zip(results, wanted, strict=True)):
            if (why := _apart(got, want)) and want.is_floating_point():
                unknown = _squares_overflow(same) if squaring else _overflowing(wide, same, at)
                why = _apart(got, want, _moved(op, same, at, want), unknown)
            if why:
                return f"result {at} is not that of plain arguments: {why}"
        spec = None if results[0].dim() > 64 else SPECS.get(name)  # isfinite() takes so many
        return spec and _off_formula(spec, op, wide, same, results)


def _plain_and_wide(op: Any) -> tuple[Any, Any]:
    """The operator that gives the plain result, and one that takes fp64, with what is saved.

    What a forward saves, and what a backward makes of what none saved, is an implementation's own.
    """
    name = op.name().split("::")[1].partition("__")[0]
    saving = f"_{name.removeprefix('_')}_fwd"
    names = (name, *(base + suffix for base in (name, saving) for suffix in WIDE))
    packets = (getattr(torch.ops.fuseline, n, None) for n in names)
    found = [packet.default for packet in packets if packet] or [op]
    return op if name.endswith(("_fwd", "_bwd")) else found[0], found[-1]


def _apart(got: Tensor, want: Tensor, moved: Any = 0.0, unknown: Any = False) -> str | None:
    """How two results differ, in words; None: they do not.

    moved    by how much one rounding of each argument moves an element
    unknown  whether an element may hold what overflowed
    """
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{tuple(got.shape)} {got.dtype}, expected {tuple(want.shape)} {want.dtype}"
    eps = torch.finfo(want.dtype).eps if want.is_floating_point() else 0.0
    got, want = got.double().view(-1), want.double().view(-1)
    largest = want[want.isfinite()].abs().amax().item() if want.isfinite().any() else 0.0
    off = (got - want).abs()
    near = want.isfinite() & (off <= ROUNDINGS * (eps * (want.abs() + largest) + moved))
    if (near | (got == want) | (got.isnan() & want.isnan()) | unknown).all():
        return None
    return f"off by {off.amax().item():.3g}, of at most {largest:.3g}"


def _moved(op: Any, args: tuple[Any, ...], at: int, want: Tensor) -> Tensor:
    """Return by how much a rounding of each argument moves each element of a result.

    Sums in any order are the exact ones of terms that are moved by a few roundings (Higham,
    Accuracy and Stability of Numerical Algorithms, 3.1), so that two orders come as far apart as
    that moves what is computed of them: by far more than their digits where terms cancel. What is
    divided by a size that cancels moves as a whole.
    """
    moved = torch.zeros(want.numel(), dtype=torch.float64)
    for near, _ in nearby({str(i): a for i, a in enumerate(args)}, (), want.dtype):
        off = accuracy.as_tuple(op(*near.values()))[at].double() - want.double()
        moved = torch.maximum(moved, off.abs().nan_to_num(0.0, 0.0).view(-1))
    return moved.amax() if moved.numel() and NORMALIZED.search(op.name()) else moved


def _overflowing(wide: Any, args: tuple[Any, ...], at: int) -> Tensor:
    """Return which elements of a result hold sums that may overflow on the way: then their order
    decides on Inf, NaN and what ReLU makes of these.

    No partial sum is larger than the sum of the sizes of all terms, in sums of sums with factors
    below 1 taken for 1. Of Inf and NaN themselves no order of a sum matters.
    """
    name, floating = wide.name(), [a for a in args if _is_floating(a)]
    if REGROUPED in name and not all(a.isfinite().all() for a in floating):
        return torch.tensor(True)
    if not SUMS.search(name):
        return torch.tensor(False)
    if _sums_first(name, args):
        return torch.tensor(True)
    most = min(torch.finfo(a.dtype).max for a in floating)
    least = 1.0 if SUMS_OF_SUMS.search(name) else 0.0
    sizes = (
        a.double().abs().nan_to_num(0.0, 0.0).clamp_(min=least) if _is_floating(a) else a
        for a in args
    )
    try:
        beyond = [~(y <= most).view(-1) for y in accuracy.as_tuple(wide(*sizes))]
    except Exception:  # it takes no fp64
        return torch.tensor(False)
    every = NORMALIZED.search(name) and any(y.any() for y in beyond)
    return torch.tensor(True) if every else beyond[at]


def _sums_first(name: str, args: tuple[Any, ...]) -> bool:
    large = any(_is_floating(a) and bool((a.abs() > 1e37).any()) for a in args)
    return large and bool(SUMS_FIRST.search(name))


def _squares_overflow(args: tuple[Any, ...]) -> bool:
    largest = (
        (a.double().nan_to_num(0.0, 0.0, 0.0).square().sum(), torch.finfo(statistics_dtype(a)).max)
        for a in args if _is_floating(a)
    )  # fmt: skip
    return any(not squares <= most for squares, most in largest)


def _is_floating(a: Any) -> bool:
    return isinstance(a, Tensor) and a.is_floating_point()


def _as_bad(mine: accuracy.ErrorFigures, eager: accuracy.ErrorFigures, dtype: torch.dtype) -> bool:
    """Whether eager is no better: terms cancel (an eps of -1), or a scale of 1e300 overflows."""
    return not eager.max_ulp < min(accuracy.HOPELESS / torch.finfo(dtype).eps, mine.max_ulp)


def _off_formula(
    spec: OpSpec, op: Any, wide: Any, args: tuple[Any, ...], results: tuple[Tensor, ...]
) -> str | None:
    inputs = {
        a.name: CASTS.get(str(a.type), lambda v: v)(v)
        for a, v in zip(op._schema.arguments, args, strict=False)
        if not a.name.startswith("need_")  # of gradients, which are results of some forwards
    }
    if (own := inputs.pop("seed_tensor", None)) is not None:
        inputs["seed"] = int(own)
    if spec.name == "conv_bn":  # what its function runs in training
        inputs |= {"running_mean": None, "running_var": None, "training": True, "momentum": 0.0}
        results = results[:1]
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
    if _sums_first(spec.name, args):
        return None
    if yardstick is None:
        return None  # eager refuses these
    for at, (n, y) in enumerate(outputs.items()):
        if not y.is_floating_point():
            if mine[n].max_ulp == math.inf:
                return f"{n} is not that of the formula"
            continue
        if _as_bad(mine[n], yardstick[n], y.dtype):
            continue
        if mine[n].max_ulp == math.inf and _overflowing(wide, args, at).any():
            continue  # of what eager adds in another order
        fair = replace(mine[n], max_ulp=mine[n].max_ulp / TAIL, scaled=mine[n].scaled / TAIL)
        if why := judge.reason(n, y.dtype, fair, yardstick[n]):
            return f"{n}: {TAIL} times the budget: {why}"
    return None
