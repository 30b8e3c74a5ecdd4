"""Checks of what comes out, against the fp64 oracle."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fuseline.core.specs.spec import Direction, Inputs
from fuseline.testing.oracle.accuracy import as_tuple, gradient_names
from fuseline.testing.oracle.chunks import lead_of
from fuseline.testing.questions import rows
from fuseline.testing.questions.edges import takes, worse_than_eager
from fuseline.testing.questions.layouts import relayouts
from fuseline.testing.report import Finding
from fuseline.testing.trial import Trial, floating, is_defined, same_bits


def forward(trial: Trial) -> Iterator[Finding]:
    """Check the outputs, without a graph, with one, and in inference mode."""
    inputs = trial.inputs()
    yield from _forward(trial, inputs, "contiguous", lambda: trial.call(inputs))
    names = gradient_names(trial.spec, inputs)
    if names:
        graph = "contiguous, with grad"
        yield from _forward(trial, inputs, graph, lambda: trial.call_with_grad(inputs, names)[0])
    with torch.inference_mode():
        results = trial.call(inputs)
    yield from _forward(trial, inputs, "contiguous, inference mode", lambda: results)


def gradients(trial: Trial) -> Iterator[Finding]:
    """Check every gradient, each under its own name."""
    inputs = trial.inputs()
    if not gradient_names(trial.spec, inputs):
        return
    dys = trial.dys(inputs)
    verdicts = trial.judge(trial.call(inputs, "bwd", dys), inputs, "bwd", dys)
    for name, (reason, figures) in verdicts.items():
        yield trial.finding(f"gradient:{name}", reason, figures={name: figures})


def outputs(trial: Trial) -> Iterator[Finding]:
    """Check shape, dtype, device and contiguity of outputs and gradients."""
    inputs = trial.inputs()
    results = trial.call(inputs)
    yield trial.finding("outputs", _misshapen(trial, inputs, results))
    names = gradient_names(trial.spec, inputs)
    if not names:
        return
    for name, gradient in trial.call(inputs, "bwd", trial.dys(inputs)).items():
        reason = _differs(f"the gradient of {name}", gradient, inputs[name], inputs[name].dtype)
        yield trial.finding("outputs", reason or _misplaced(trial, inputs, name, gradient))


def layouts(trial: Trial) -> Iterator[Finding]:
    """Check inputs and incoming gradients in every layout of their rank, alone and together."""
    inputs = trial.inputs()
    together: dict[str, Inputs] = {}
    for name in trial.relayout_names(inputs):
        for layout, view in relayouts(inputs[name]):
            reason = _wrong_in_layout(trial, {**inputs, name: view})
            yield trial.finding("layouts", reason, f"{name}: {layout}")
            together.setdefault(layout, dict(inputs))[name] = view
    if not gradient_names(trial.spec, inputs):
        return
    dys = trial.dys(inputs)
    views = [dict(relayouts(dy)) for dy in dys]
    for i, those in enumerate(views):
        for layout, view in those.items():
            reason = trial.wrong(inputs, "bwd", (*dys[:i], view, *dys[i + 1 :]))
            yield trial.finding("layouts", reason, f"dy{i}: {layout}")
    for layout, changed in together.items():
        odd = tuple(those.get(layout, dy) for those, dy in zip(views, dys, strict=True))
        reason = worse_than_eager(trial, changed, odd)
        yield trial.finding("layouts", reason, f"everything: {layout}")


def overlaps(trial: Trial) -> Iterator[Finding]:
    """Check rows of equal elements with a last stride of 0, and rows that overlap in memory."""
    inputs = trial.inputs()
    for name in trial.relayout_names(inputs):
        tensor = inputs[name]
        if not tensor.dim() or not tensor.numel():
            continue
        views = {"last stride 0": tensor[..., :1].expand(tensor.shape)}
        if tensor.dim() == 2:
            views["overlapping rows"] = tensor.as_strided(tensor.shape, (1, 1))
        for layout, view in views.items():
            reason = worse_than_eager(trial, {**inputs, name: view})
            yield trial.finding("overlaps", reason, f"{name}: {layout}")


def expanded_gradient(trial: Trial) -> Iterator[Finding]:
    """Check output gradients of stride 0 everywhere, as y.sum() makes them, and in the last dim."""
    inputs = trial.inputs()
    if gradient_names(trial.spec, inputs):
        dys = trial.dys(inputs)
        flat = tuple(dy.flatten()[:1].view([1] * dy.dim()).expand_as(dy) for dy in dys)
        yield trial.finding("expanded-gradient", trial.wrong(inputs, "bwd", flat), "dy: stride 0")
        last = tuple(dy[..., :1].expand_as(dy) if dy.dim() else dy for dy in dys)
        reason = worse_than_eager(trial, inputs, last)
        yield trial.finding("expanded-gradient", reason, "dy: last stride 0")


def empty(trial: Trial) -> Iterator[Finding]:
    """Check no rows: empty outputs of the right shape, gradients of what is shared exactly zero."""
    inputs = trial.inputs()
    if not rows.count(trial, inputs):
        return
    none = {**inputs, **{n: inputs[n][:0] for n in trial.row_names(inputs)}}
    yield trial.finding("empty", _misshapen(trial, none, trial.call(none)), "no rows")
    names = gradient_names(trial.spec, none)
    if not names:
        return
    found = trial.call(none, "bwd", trial.dys(none))
    yield trial.finding("empty", _wrong_empty_gradients(none, names, found), "no rows")
    between = rows.with_lead(trial, inputs, torch.arange(0, device=trial.device), (2, 0, 3))
    yield trial.finding("empty", _misshapen(trial, between, trial.call(between)), "(2, 0, 3) rows")


def ranks(trial: Trial) -> Iterator[Finding]:
    """Check one row without leading dimensions, and rows under three leading dimensions."""
    inputs = trial.inputs()
    n = rows.count(trial, inputs)
    every = torch.arange(n, device=trial.device)
    for lead in ((), (1,), (1, n, 1), (n, 1, 1, 1)) if n else ():
        shaped = rows.with_lead(trial, inputs, every[: math.prod(lead)], lead)
        if trial.is_defined(shaped):
            yield trial.finding("ranks", trial.wrong_anywhere(shaped), f"leading dims {lead}")


def many_rows(trial: Trial) -> Iterator[Finding]:
    """Check so many rows that a sum over them, or a grid of them, shows its limits."""
    inputs = rows.many(trial, trial.inputs())
    if inputs is not None:
        n = rows.count(trial, inputs)
        yield trial.finding("many-rows", trial.wrong_anywhere(inputs), f"{n} rows")


def magnitude(trial: Trial) -> Iterator[Finding]:
    """Check large, small and far from zero, as far as eager itself can cope with that."""
    inputs = trial.inputs()
    for factor, offset in trial.spec.magnitudes:
        reason = worse_than_eager(trial, _scaled(trial, inputs, factor, offset))
        yield trial.finding("magnitude", reason, f"inputs * {factor:g} + {offset:g}")
    shared = [n for n in floating(inputs) if n not in trial.row_names(inputs)]
    for factor in (f for f, _ in trial.spec.magnitudes if f != 1.0):
        scaled = {**inputs, **{n: inputs[n] * factor for n in shared}}
        reason = worse_than_eager(trial, scaled) if shared else None
        yield trial.finding("magnitude", reason, f"{', '.join(shared)} * {factor:g}")


def side_values(trial: Trial) -> Iterator[Finding]:
    """Check every float argument at other values, with inputs so scaled that the value matters."""
    inputs = trial.inputs()
    for name, value in inputs.items():
        if not isinstance(value, float):
            continue
        for factor in (1000.0, 0.1, 0.0):
            other = value * factor if value else factor
            if other == value:
                continue
            changed = _where_it_matters(trial, inputs, name, other)
            if changed is not None and (other or takes(trial, changed)):
                reason = worse_than_eager(trial, changed)
                said = f"with {name}={other:.3g}: {reason}" if reason else None
                yield trial.finding("side-values", said, f"{name}={other:.3g}")


def non_finite(trial: Trial, value: float) -> Iterator[Finding]:
    """Check that NaN or Inf planted in one row reaches it as in the oracle, and no other row."""
    inputs = trial.inputs()
    n = rows.count(trial, inputs)
    sources = [s for s in trial.row_names(inputs) if n and s in floating(inputs)]
    for source in sources:
        for row, column in ((n // 2, -1), (0, 0)):
            planted = inputs[source].clone(memory_format=torch.contiguous_format)
            rows.flat(planted, trial.spec)[row].view(-1)[column] = value
            reason = _mishandled(trial, inputs, {**inputs, source: planted}, row, value)
            yield trial.finding(_name(value), reason, f"{source}: {_name(value)} in row {row}")
    for name in floating(inputs) if math.isnan(value) else ():
        if name not in sources and inputs[name].dim():
            planted = inputs[name].clone(memory_format=torch.contiguous_format)
            planted.view(-1)[-1] = value
            reason = worse_than_eager(trial, {**inputs, name: planted})
            yield trial.finding(_name(value), reason, f"{name}: {_name(value)} at its end")


def _mishandled(trial: Trial, inputs: Inputs, dirty: Inputs, row: int, value: float) -> str | None:
    # Torch's own kernels and others answer a row with an Inf in their own way.
    bound = math.isnan(value) or trial.impl.role in ("ours", "eager")
    reason = trial.wrong(dirty, "fwd") if bound else None
    reason = reason or _spreads(trial, inputs, dirty, row, None)
    if reason or not gradient_names(trial.spec, inputs):
        return reason
    dys = trial.dys(inputs)
    # What a gradient is at Inf depends on the order of the formula; at NaN it does not.
    reason = trial.wrong(dirty, "bwd", dys) if math.isnan(value) else None
    return reason or _spreads(trial, inputs, dirty, row, dys)


def _name(value: float) -> str:
    return "nan" if math.isnan(value) else "inf"


def _misplaced(trial: Trial, inputs: Inputs, name: str, tensor: Tensor) -> str | None:
    """Return why the result breaks the operator's promise of its memory layout, or None."""
    like = inputs.get(trial.spec.keeps_layout)
    if like is not None and tensor.shape == like.shape:
        wanted = torch.empty_like(like)
        if _significant_strides(tensor) == _significant_strides(wanted):
            return None
        layout = f"{wanted.stride()} as {trial.spec.keeps_layout} has"
    elif tensor.is_contiguous() or not trial.spec.contiguous:
        return None
    else:
        layout = "contiguous"
    return f"{name} has strides {tensor.stride()} for shape {tuple(tensor.shape)}, not {layout}"


def _significant_strides(t: Tensor) -> list[int]:
    """Return the strides of the dimensions of which there are several elements."""
    return [step for size, step in zip(t.shape, t.stride(), strict=True) if size > 1]


def _forward(
    trial: Trial, inputs: Inputs, layout: str, call: Callable[[], dict[str, Tensor]]
) -> Iterator[Finding]:
    for name, (reason, figures) in trial.judge(call(), inputs, "fwd").items():
        yield trial.finding("forward", reason and f"{name}: {reason}", layout, {name: figures})


def _misshapen(trial: Trial, inputs: Inputs, results: dict[str, Tensor]) -> str | None:
    expected = _quiet(trial.spec.reference, inputs)
    eager = _quiet(trial.eager, inputs) if is_defined(trial.eager, inputs) else expected
    if len(results) != len(expected):
        return f"{len(results)} outputs came, {len(expected)} were expected"
    for (name, result), shape, yard in zip(results.items(), expected, eager, strict=True):
        floats = result.is_floating_point() and yard.is_floating_point()
        dtype = trial.dtype if floats and result.dtype == trial.dtype else yard.dtype
        reason = _differs(name, result, shape, dtype) or _misplaced(trial, inputs, name, result)
        if reason:
            return reason
    return None


def _differs(name: str, result: Tensor, like: Tensor, dtype: torch.dtype) -> str | None:
    came = (tuple(result.shape), result.dtype, result.device)
    wanted = (tuple(like.shape), dtype, like.device)
    if came == wanted:
        return None
    return f"{name} has (shape, dtype, device) {came}, expected {wanted}"


def _wrong_in_layout(trial: Trial, inputs: Inputs) -> str | None:
    reason = trial.wrong_anywhere(inputs)
    if reason or not trial.spec.contiguous or trial.impl.role != "ours":
        return reason
    results = trial.call(inputs)
    if gradient_names(trial.spec, inputs):
        results |= trial.call(inputs, "bwd", trial.dys(inputs))
    return next(filter(None, (_misplaced(trial, inputs, n, t) for n, t in results.items())), None)


def _wrong_empty_gradients(
    inputs: Inputs, names: tuple[str, ...], found: dict[str, Tensor]
) -> str | None:
    for name in names:
        if name not in found:
            return f"no gradient came for {name}"
        reason = _differs(f"the gradient of {name}", found[name], inputs[name], inputs[name].dtype)
        if reason:
            return reason
        strays = int(found[name].count_nonzero())
        if strays:
            return f"the gradient of {name} has {strays} elements that are not zero, expected none"
    return None


def _scaled(trial: Trial, inputs: Inputs, factor: float, offset: float = 0.0) -> Inputs:
    names = trial.row_names(inputs) or tuple(floating(inputs))
    return {**inputs, **{n: inputs[n] * factor + offset for n in names if n in floating(inputs)}}


def _where_it_matters(trial: Trial, inputs: Inputs, name: str, other: float) -> Inputs | None:
    """Return inputs with argument `name` at `other`, scaled down
    until it changes the result by 5 %.

    None where the other value is outside what the operator takes.
    """
    for exponent in (0, -4, -8, -12, -16):
        before = _scaled(trial, inputs, 2.0**exponent)
        after = {**before, name: other}
        if not trial.is_defined(after) or not is_defined(trial.eager, after):
            return None
        pairs = zip(
            _quiet(trial.spec.reference, before), _quiet(trial.spec.reference, after), strict=True
        )
        if any(bool((a - b).abs().max() > 0.05 * b.abs().max()) for a, b in pairs if b.numel()):
            return after
    return {**inputs, name: other}


def _spreads(
    trial: Trial, clean: Inputs, dirty: Inputs, row: int, dys: tuple[Tensor, ...] | None
) -> str | None:
    """Return which other row changed between the clean inputs
    and those with a dirty row, or None.
    """
    direction: Direction = "fwd" if dys is None else "bwd"
    before, after = (trial.call(i, direction, dys) for i in (clean, dirty))
    n = rows.count(trial, clean)
    others = torch.arange(n, device=trial.device) != row
    lead = lead_of(trial.spec, clean)
    for name in after:
        if dys is not None and name not in trial.row_names(clean):
            continue
        if dys is None and lead is not None and after[name].shape[: len(lead)] != lead:
            continue  # one for all rows
        a, b = (t[name].reshape(n, -1)[others] for t in (before, after))
        if not same_bits(a, b):
            changed = int(((a != b) & ~(a.isnan() & b.isnan())).any(1).sum())
            return f"{name}: {changed} other rows changed, expected none"
    return None


def _quiet(fn: Callable[..., Any], inputs: Inputs) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return as_tuple(fn(**inputs))
