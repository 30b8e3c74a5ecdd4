"""Checks of the gradients' existence and of their derivatives."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from fuseline.core.spec import Inputs
from fuseline.testing import rows
from fuseline.testing.accuracy import as_tuple, gradient_names, make_dys
from fuseline.testing.report import Finding
from fuseline.testing.trial import Results, Trial, floating

FULL_JACOBIAN = 256
FAST_JACOBIAN = 1 << 16


def presence(trial: Trial) -> Iterator[Finding]:
    """A right gradient for every set of inputs that ask for one, and no graph where none asks."""
    inputs = trial.inputs()
    names = gradient_names(trial.spec, inputs)
    if not names:
        return
    yield trial.finding("gradient-presence", _needless_graph(trial, inputs, names), "none asks")
    for wanted in dict.fromkeys([*((n,) for n in names), names]):
        reason = _absent_or_wrong(trial, inputs, wanted)
        yield trial.finding("gradient-presence", reason, f"{', '.join(wanted)} asks")


def gradcheck(trial: Trial) -> Iterator[Finding]:
    """First derivatives against finite differences."""
    yield from _differences(trial, "gradcheck")


def gradgradcheck(trial: Trial) -> Iterator[Finding]:
    """Second derivatives against finite differences."""
    yield from _differences(trial, "gradgradcheck")


def _absent_or_wrong(trial: Trial, inputs: Inputs, wanted: tuple[str, ...]) -> str | None:
    results, leaves = trial.call_with_grad(inputs, wanted)
    outputs = tuple(y for y in results.values() if y.is_floating_point())
    detached = [n for n, y in results.items() if y.is_floating_point() and not y.requires_grad]
    if detached:
        return f"{detached[0]} does not require grad, although {', '.join(wanted)} does"
    dys = make_dys(outputs, trial.generator("dys"))
    asked = tuple(leaves[n] for n in wanted)
    found = torch.autograd.grad(outputs, asked, dys, allow_unused=True)
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
    """The case with at most two of its rows."""
    inputs = trial.inputs()
    n = min(2, rows.count(trial, inputs))
    if n == 0:
        return inputs
    return rows.with_lead(trial, inputs, torch.arange(n, device=trial.device), (n,))
