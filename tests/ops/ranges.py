"""Rows at every magnitude that a dtype has, and how right each operator is there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fuseline import table
from fuseline.core.specs.spec import Case, Direction, Inputs, OpSpec
from fuseline.testing import Judge
from fuseline.testing.oracle import accuracy
from fuseline.testing.oracle.accuracy import ErrorFigures
from fuseline.testing.trial import Trial, floating

# A product of numbers at the end of a range has none in the range.
SPECS = {name: spec for name, spec in table.load().items() if spec.row_inputs}
# What is scaled where it is not all inputs in rows: y of a softmax is at most 1.
SCALED = {"softmax_backward": ("dy",)}
# exp(-h^2 / 2) has h^2 of the relative error of h = x + bias.
FP64_ULP = {"bias_gelu": 32.0}


def magnitudes(dtype: torch.dtype, few: bool = False) -> list[int]:
    """Powers of two from the subnormal numbers to a few below the largest, or the ends alone."""
    info = torch.finfo(dtype)
    least, most = round(math.log2(info.tiny)), round(math.log2(info.max))
    ends = (least + _digits(dtype) + 2, least - 3, least + 2, most - 7)
    if few:
        return sorted({*ends})
    between = (least * 2 // 3, least // 2 - 3, least // 2 + 3, -4, 4, most // 2 - 3, most // 2 + 3)
    return sorted({*ends, *between})


def epsilons(inputs: Inputs, dtype: torch.dtype) -> list[float | None]:
    """Values of eps: the spec's own, none, far below and far above; None without an eps."""
    if "eps" not in inputs:
        return [None]
    computed = torch.finfo(torch.promote_types(dtype, torch.float32))
    return [inputs["eps"], 0.0, computed.tiny * 4, 1e300 if computed.max > 1e300 else 1e30]


def _digits(dtype: torch.dtype) -> int:
    """The power of two of eps."""
    return round(math.log2(torch.finfo(dtype).eps))


def cases(spec: OpSpec, shortest: int, longest: int) -> list[Case]:
    """One case of rows between these lengths for each kind of arguments, at most three."""
    kinds: dict[str, Case] = {}
    for case in spec.cases:
        length = (case.args["shape"] or (1,))[-1]
        kind = str({k: v for k, v in case.args.items() if k != "shape"})
        if "check" in case.suites and shortest <= length <= longest:
            kinds.setdefault(kind, case)
    return list(kinds.values())[:3]


def scaled(trial: Trial, inputs: Inputs, power: int) -> Inputs:
    """The inputs in rows times a power of two."""
    floats = floating(inputs)
    names = SCALED.get(trial.spec.name) or trial.row_names(inputs) or tuple(floats)
    factor = torch.tensor(power, device=trial.device)
    changed = {
        n: torch.ldexp(inputs[n].double(), factor).to(inputs[n].dtype) for n in names if n in floats
    }
    return inputs | changed


def _leaves_no_digits(trial: Trial, direction: Direction, eps: float | None, power: int) -> bool:
    """Whether the formula, or what is saved for its gradient, has no digits in that type there."""
    computed = torch.finfo(torch.promote_types(trial.dtype, torch.float32))
    least, most = math.log2(computed.tiny), math.log2(computed.max)
    if eps is not None and eps < 1e-30 and power <= -most and direction == "bwd":
        return True  # 1 / the root of the mean square overflows
    if trial.spec.name == "layer_norm" and eps and direction == "fwd":
        return power < least - _digits(trial.dtype)  # what the mean's rounding loses underflows
    # Of rows with one element far above the rest the saved y is rounded to 0 and 1.
    return "softmax" in trial.spec.name and direction == "bwd" and power > 0


@dataclass(frozen=True)
class Home:
    """One direction on the spec's own inputs: output gradients, and the errors of eager."""

    dys: tuple[Tensor, ...] | None
    eager: dict[str, ErrorFigures]


def homes(trial: Trial, own: Inputs) -> dict[Direction, Home]:
    found: dict[Direction, Home] = {}
    directions: tuple[Direction, ...] = ("fwd", "bwd")
    for direction in directions[: 2 if accuracy.gradient_names(trial.spec, own) else 1]:
        dys = None if direction == "fwd" else trial.dys(own)
        results = accuracy.run(trial.eager, trial.spec, own, direction, dys)
        found[direction] = Home(dys, accuracy.errors(trial.spec, own, direction, results, dys))
    return found


def _yardstick(
    dtype: torch.dtype, direction: Direction, *eager: ErrorFigures | None
) -> ErrorFigures | None:
    """The largest of eager's errors that leave it any digits, as a direction counts them."""
    limit = accuracy.HOPELESS / torch.finfo(dtype).eps

    def size(figures: ErrorFigures) -> float:
        return figures.max_ulp if direction == "fwd" else figures.scaled

    return max((e for e in eager if e is not None and size(e) <= limit), key=size, default=None)


def wrong(
    trial: Trial, at_home: dict[Direction, Home], inputs: Inputs, power: int
) -> Iterator[str]:
    """Why an output or a gradient is over the budget.

    The yardstick is eager's error on these inputs or on the spec's own, where it has digits.
    """
    spec, eps = trial.spec, inputs.get("eps")
    budget = spec.budget
    if spec.name in FP64_ULP:
        budget = replace(budget, fp64_fwd_ulp=FP64_ULP[spec.name])
    for direction, home in at_home.items():
        if _leaves_no_digits(trial, direction, eps, power):
            continue
        judge = Judge(spec, inputs, direction, home.dys, trial.eager, budget)
        results = trial.call(inputs, direction, home.dys)
        mine, here = judge.errors(results)
        assert here is not None
        for name, figures in mine.items():
            result = results.get(name)
            floats = result is not None and result.is_floating_point()
            dtype = result.dtype if floats else trial.dtype
            eager = _yardstick(dtype, direction, here.get(name), home.eager.get(name))
            reason = judge.reason(name, dtype, figures, eager)
            # Of terms that are subnormal as many roundings say nothing.
            info = torch.finfo(dtype)
            if reason and figures.max_abs > 128 * info.smallest_normal * info.eps:
                yield f"{direction} {name}: {reason}"


def _product_times(factor: float, a: Tensor, b: Tensor | None = None, **_: object) -> Tensor:
    """The size of a * b, of a gated operator's inputs, times a factor."""
    gate, value = a.chunk(2, -1) if b is None else (a, b)
    return gate.double() * value.double() * factor


def failures(
    name: str,
    impl: str,
    dtype: torch.dtype,
    device: str = "cpu",
    shortest: int = 60,
    longest: int = 50000,
    few: bool = False,
) -> list[str]:
    """What is wrong with one implementation in one dtype, a line each.

    few: at the ends alone, with the spec's eps and without.
    """
    spec, found = SPECS[name], []
    flushed = impl != "cpu" and dtype != torch.float64  # the hardware's 2^v is 0 below 2^-126
    if name == "bias_gelu" and flushed:  # so that y is for h < -10
        spec = replace(spec, added=lambda x, **_: torch.full_like(x, 2.0**-100))
    if name == "geglu":
        # What passes of a has the digits of a subnormal number there, or none, whatever b is.
        computed = torch.finfo(torch.promote_types(dtype, torch.float32))
        least = computed.tiny / (computed.eps if flushed else 1)
        spec = replace(spec, added=partial(_product_times, least))
    for case in cases(spec, shortest, longest):
        trial = Trial(spec, spec.implementation(impl), case, dtype, torch.device(device))
        own = trial.inputs()
        at_home = homes(trial, own)
        for eps in epsilons(own, dtype)[: 2 if few else None]:
            for power in magnitudes(dtype, few):
                inputs = scaled(trial, own, power)
                if eps is not None:
                    inputs["eps"] = eps
                where = f"{case.name} eps={eps} * 2^{power}"
                found += [f"{where}: {reason}" for reason in wrong(trial, at_home, inputs, power)]
    return found
