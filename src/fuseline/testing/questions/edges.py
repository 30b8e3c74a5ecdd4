"""Checks beyond the spec's own cases: other row lengths, crowds of rows, zeros, odd gradients.

The reference judges where it has an answer and eager copes. To refuse another row length is no
fault; to refuse other values is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fuseline.core.specs.spec import Implementation, Inputs
from fuseline.testing.oracle.accuracy import gradient_names
from fuseline.testing.questions import rows
from fuseline.testing.report import Finding
from fuseline.testing.trial import Trial, floating, same_bits

Dys = tuple[Tensor, ...]
FEW_ROWS = 3
SHORT = 4
# More rows than a CUDA grid has in y or z, and an odd number of them.
CROWD = (1 << 16) + 5


def lengths(trial: Trial) -> Iterator[Finding]:
    """Check rows of other lengths: one element, odd, longer than a block."""
    inputs = trial.inputs()
    few = rows.first(trial, inputs, FEW_ROWS)
    if few is None:
        return
    own = rows.length(trial, few)
    for length in (1, 3, own - 1, own + 1, 8209, *((70001,) if trial.thorough else ())):
        other = rows.with_length(trial, few, length) if length > 0 else None
        if other is not None and takes(trial, other):
            yield trial.finding("lengths", worse_than_eager(trial, other), f"rows of {length}")


def crowd(trial: Trial) -> Iterator[Finding]:
    """Check so many short rows that a grid shows its limits, twice with the same bits."""
    inputs = rows.with_length(trial, trial.inputs(), SHORT)
    if inputs is None or trial.dtype == torch.float64:
        return
    drawn = torch.arange(CROWD, device=trial.device) % rows.count(trial, inputs)
    if not takes(trial, inputs):
        return
    crowded = _varied(trial, rows.with_lead(trial, inputs, drawn, (CROWD,)))
    yield trial.finding("crowd", worse_than_eager(trial, crowded), f"{CROWD} rows of {SHORT}")
    if gradient_names(trial.spec, crowded):
        dys = trial.dys(crowded)
        first, second = (trial.call(crowded, "bwd", dys) for _ in range(2))
        varying = [n for n in first if n not in second or not same_bits(first[n], second[n])]
        reason = f"{varying[0]}: two calls gave different bits" if varying else None
        yield trial.finding("crowd", reason, f"{CROWD} rows of {SHORT}, twice")


def _varied(trial: Trial, inputs: Inputs) -> Inputs:
    """Return inputs without equal rows: of few values eager's worst would be a matter of luck."""
    generator, changed = trial.generator("crowd"), dict(inputs)
    for name in sorted(floating(inputs).keys() & set(trial.row_names(inputs))):
        value = inputs[name]
        factor = torch.rand(value.shape, generator=generator, device=trial.device) + 0.5
        changed[name] = value * factor.to(value.dtype)
    return changed


def zeros(trial: Trial) -> Iterator[Finding]:
    """Check a row of zeros, and zeros at both ends of what the rows share."""
    inputs = dict(trial.inputs())
    in_rows = trial.row_names(inputs)
    for name, tensor in floating(inputs).items():
        planted = tensor.clone(memory_format=torch.contiguous_format)
        if name in in_rows:
            rows.flat(planted, trial.spec)[-1] = 0.0
        elif planted.dim():
            planted.view(-1)[:1] = planted.view(-1)[-1:] = 0.0
        inputs[name] = planted
    yield trial.finding("zeros", worse_than_eager(trial, inputs), "a row of zeros")


def incoming(trial: Trial) -> Iterator[Finding]:
    """Check output gradients that are large, small, zero, NaN in one place, or the input itself."""
    inputs = trial.inputs()
    if not gradient_names(trial.spec, inputs):
        return
    dys = trial.dys(inputs)
    power = 8 if trial.dtype == torch.float16 else 16
    for factor in (2.0**power, 2.0**-power, 0.0):
        scaled = tuple(dy * factor for dy in dys)
        yield trial.finding("incoming", worse_than_eager(trial, inputs, scaled), f"dy * {factor:g}")
    planted = tuple(dy.clone() for dy in dys)
    for dy in planted:
        if dy.is_floating_point() and dy.numel():
            dy[(0,) * dy.dim()] = torch.nan
    yield trial.finding("incoming", worse_than_eager(trial, inputs, planted), "NaN in dy")
    twins = [
        t for t in floating(inputs).values() if (t.shape, t.dtype) == (dys[0].shape, dys[0].dtype)
    ]
    if len(dys) == 1 and twins:
        reason = worse_than_eager(trial, inputs, (twins[0],))
        yield trial.finding("incoming", reason, "dy is the input")


def takes(trial: Trial, inputs: Inputs) -> bool:
    """Return whether the implementation accepts these inputs at all."""
    try:
        trial.call(inputs)
    except Exception:
        return False
    return True


def worse_than_eager(trial: Trial, inputs: Inputs, dys: Dys | None = None) -> str | None:
    """Return why a result is wrong (the backward's alone, given dys), or None.

    None as well where the reference has no finite answer, or where eager is wrong itself.
    """
    if not trial.is_defined(inputs):
        return None
    ask: Callable[[Trial], str | None]
    if dys is None:
        ask = partial(Trial.wrong_anywhere, inputs=inputs)
    else:
        ask = partial(Trial.wrong, inputs=inputs, direction="bwd", dys=dys)
    reason = ask(trial)
    eager = replace(trial, impl=Implementation("eager", trial.eager))
    return reason if reason and not ask(eager) else None
