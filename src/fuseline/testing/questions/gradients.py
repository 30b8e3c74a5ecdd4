"""Checks of the gradients' existence and of their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from fuseline.core.specs.spec import Implementation, Inputs
from fuseline.testing.oracle.accuracy import as_tuple, gradient_names, make_dys
from fuseline.testing.oracle.conditioning import nearby
from fuseline.testing.questions import rows
from fuseline.testing.report import Finding
from fuseline.testing.trial import Results, Trial, floating

FULL_JACOBIAN = 256
FAST_JACOBIAN = 1 << 16


def presence(trial: Trial) -> Iterator[Finding]:
    """Check a gradient for every set of inputs that require one, and no graph where none does."""
    inputs = trial.inputs()
    names = gradient_names(trial.spec, inputs)
    if not names:
        return
    yield trial.finding("gradient-presence", _needless_graph(trial, inputs, names), "none asks")
    for wanted in dict.fromkeys([*((n,) for n in names), names]):
        reason = _absent_or_wrong(trial, inputs, wanted)
        yield trial.finding("gradient-presence", reason, f"{', '.join(wanted)} asks")


def gradcheck(trial: Trial) -> Iterator[Finding]:
    """Check first derivatives against finite differences."""
    yield from _differences(trial, "gradcheck")


def gradgradcheck(trial: Trial) -> Iterator[Finding]:
    """Check second derivatives against finite differences."""
    yield from _differences(trial, "gradgradcheck")


def second_order(trial: Trial) -> Iterator[Finding]:
    """Check gradients with a graph of their own, and the gradients of these."""
    inputs = trial.inputs()
    names = gradient_names(trial.spec, inputs)
    if not names or trial.dtype not in (torch.float32, torch.float64):
        return
    dys = trial.dys(inputs)
    found, second = _twice(trial.impl.fn, inputs, names, dys)
    reason = trial.why_wrong(found, inputs, "bwd", dys)
    yield trial.finding("second-order", reason, "first gradient, create_graph=True")
    wanted = _exactly_twice(trial, inputs, names, dys)
    eagers = _eagers_error(trial, inputs, dys, wanted)
    rounding = torch.finfo(trial.dtype).eps ** 0.5
    for name in names:
        off = (second[name] - wanted[name]).abs().max().item()
        scale = wanted[name].abs().max().item()
        if off > max(rounding * scale, 4 * eagers[name]):  # one draw of eager's error may be luck
            for moved, seeds in nearby(inputs, dys, trial.dtype):
                exact = _exactly_twice(trial, moved, names, seeds)
                found_there = _eagers_error(trial, moved, seeds, exact)
                eagers = {n: max(eagers[n], found_there[n]) for n in names}
        limit = max(rounding * scale, 4 * eagers[name])
        if math.isfinite(limit):
            told = f"{name}: off by {off:.3g}, {limit:.3g} is allowed"
            yield trial.finding("second-order", None if off <= limit else told, f"of {name}")


def _exactly_twice(
    trial: Trial, inputs: Inputs, names: tuple[str, ...], dys: tuple[Tensor, ...]
) -> Results:
    """Return the second derivatives of the reference in fp64."""
    exact = {n: v.double() if n in floating(inputs) else v for n, v in inputs.items()}
    return _twice(trial.spec.reference, exact, names, tuple(dy.double() for dy in dys))[1]


def _eagers_error(
    trial: Trial, inputs: Inputs, dys: tuple[Tensor, ...], wanted: Results
) -> dict[str, float]:
    """Return eager's largest error in each second derivative."""
    found = _twice(trial.eager, inputs, tuple(wanted), dys)[1]
    return {name: (found[name] - wanted[name]).abs().max().item() for name in wanted}


def _twice(
    fn: Callable[..., Any], inputs: Inputs, names: tuple[str, ...], dys: tuple[Tensor, ...]
) -> tuple[Results, Results]:
    """Return the gradients with their graph, and those of the sum of their squares (0 for none)."""
    leaves = {n: inputs[n].detach().clone().requires_grad_() for n in names}
    with torch.enable_grad():
        live = [
            (y, dy)
            for y, dy in zip(as_tuple(fn(**{**inputs, **leaves})), dys, strict=True)
            if y.requires_grad
        ]
        ys, seeds = zip(*live, strict=True)
        asked = tuple(leaves.values())
        grads = torch.autograd.grad(ys, asked, seeds, create_graph=True, allow_unused=True)
        found = {n: g for n, g in zip(names, grads, strict=True) if g is not None}
        total = sum(g.square().sum() for g in found.values())
    if not isinstance(total, Tensor) or not total.requires_grad:
        return found, {n: torch.zeros_like(leaf) for n, leaf in leaves.items()}
    second = torch.autograd.grad(total, asked, allow_unused=True, materialize_grads=True)
    return found, dict(zip(names, second, strict=True))


def _absent_or_wrong(trial: Trial, inputs: Inputs, wanted: tuple[str, ...]) -> str | None:
    results, leaves = trial.call_with_grad(inputs, wanted)
    reason = trial.why_wrong(results, inputs, "fwd")
    if reason:
        return reason
    expected, _ = replace(trial, impl=Implementation("", trial.spec.reference)).call_with_grad(
        inputs, wanted
    )
    detached = [n for n, y in results.items() if expected[n].requires_grad and not y.requires_grad]
    if detached:
        return f"{detached[0]} does not require grad, although {', '.join(wanted)} does"
    if not any(y.requires_grad for y in results.values()):
        return None
    dys = make_dys(tuple(results.values()), trial.generator("dys"))
    live = [pair for pair in zip(results.values(), dys, strict=True) if pair[0].requires_grad]
    of, seeds = zip(*live, strict=True)
    asked = tuple(leaves[n] for n in wanted)
    found = torch.autograd.grad(of, asked, seeds, allow_unused=True)
    present: Results = {n: g for n, g in zip(wanted, found, strict=True) if g is not None}
    stray = [n for n, leaf in leaves.items() if leaf.grad is not None]
    if stray:
        return f"{stray[0]}: its .grad was written, expected the gradient to be returned only"
    verdicts = trial.judge(present, inputs, "bwd", dys)
    for name in wanted:
        reason = verdicts[name][0]
        if reason:
            return f"{name}: {reason}"
    return None


def _needless_graph(trial: Trial, inputs: Inputs, names: tuple[str, ...]) -> str | None:
    for name, y in trial.call_with_grad(inputs, ())[0].items():
        if y.requires_grad:
            return f"{name} requires grad, although no input does"
    asking = {**inputs, **{n: inputs[n].detach().requires_grad_() for n in names}}
    with torch.no_grad():
        outputs = as_tuple(trial.impl.fn(**asking))
    if any(y.requires_grad for y in outputs):
        return "an output requires grad under torch.no_grad()"
    return None


def _differences(trial: Trial, which: str) -> Iterator[Finding]:
    if trial.dtype != torch.float64:
        return
    inputs = _tiny(trial)
    # Finite differences of a narrower input would drown in its rounding.
    names = tuple(n for n in gradient_names(trial.spec, inputs) if inputs[n].dtype == trial.dtype)
    size = sum(t.numel() for t in floating(inputs).values())
    if not names or size > FAST_JACOBIAN:
        return

    def fn(*leaves: Tensor) -> tuple[Tensor, ...]:
        outputs = as_tuple(trial.impl.fn(**{**inputs, **dict(zip(names, leaves, strict=True))}))
        return tuple(y for y in outputs if y.is_floating_point())

    leaves = tuple(inputs[n].detach().clone().requires_grad_() for n in names)
    ask = getattr(torch.autograd, which)
    try:
        ask(fn, leaves, fast_mode=size > FULL_JACOBIAN)
        reason = None
    except GradcheckError as error:
        reason = " ".join(str(error).split())[:300]
    yield trial.finding(which, reason, f"{size} elements")


def _tiny(trial: Trial) -> Inputs:
    """Return the case with at most two of its rows."""
    inputs = trial.inputs()
    return rows.first(trial, inputs, 2) or inputs
