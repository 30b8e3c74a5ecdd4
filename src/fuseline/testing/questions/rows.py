"""Other row counts and ranks from the rows that a case has."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fuseline.core.specs.spec import Inputs, OpSpec
from fuseline.testing.oracle.chunks import ndim_of_row
from fuseline.testing.trial import Trial


def flat(tensor: Tensor, spec: OpSpec, name: str = "") -> Tensor:
    """Return the tensor, the input of that name, as (rows, *row)."""
    lead = tensor.dim() - ndim_of_row(spec, name)
    return tensor.reshape((math.prod(tensor.shape[:lead]), *tensor.shape[lead:]))


def with_lead(trial: Trial, inputs: Inputs, rows: Tensor, lead: tuple[int, ...]) -> Inputs:
    """Return the inputs made of the rows with these indices, in the leading dimensions `lead`."""
    changed = dict(inputs)
    for name in trial.row_names(inputs):
        chosen = flat(inputs[name], trial.spec, name)[rows]
        changed[name] = chosen.reshape((*lead, *chosen.shape[1:]))
    return changed


def count(trial: Trial, inputs: Inputs) -> int:
    """Return how many rows the inputs have; 0 where the operator has no rows."""
    names = trial.row_names(inputs)
    return flat(inputs[names[0]], trial.spec, names[0]).shape[0] if names else 0


def length(trial: Trial, inputs: Inputs) -> int:
    """Return the elements of the last dimension of a row."""
    return int(inputs[trial.row_names(inputs)[0]].shape[-1])


def first(trial: Trial, inputs: Inputs, most: int) -> Inputs | None:
    """Return the inputs with at most that many of their rows; None if the operator has no rows."""
    n = min(most, count(trial, inputs))
    if n == 0:
        return None
    return with_lead(trial, inputs, torch.arange(n, device=trial.device), (n,))


def with_length(trial: Trial, inputs: Inputs, wanted: int) -> Inputs | None:
    """Return the inputs with rows, and all that is as long, cut or repeated to another length.

    None where rows are not one-dimensional or the reference has no answer for such inputs.
    """
    if trial.spec.row_ndim != 1 or not trial.row_names(inputs):
        return None
    own = length(trial, inputs)
    index = torch.arange(wanted, device=trial.device) % own
    changed = {
        name: value[..., index]
        if isinstance(value, Tensor)
        and value.dim()
        and value.shape[-1] == own
        and name not in trial.spec.row_values
        else value
        for name, value in inputs.items()
    }
    return changed if trial.is_defined(changed) else None


def many(trial: Trial, inputs: Inputs) -> Inputs | None:
    """Return the inputs with many rows, drawn from those of the case; None with fewer than two."""
    rows = count(trial, inputs)
    if rows < 2:
        return None
    name = trial.row_names(inputs)[0]
    length = max(1, inputs[name].numel() // rows)
    # In fp64 the sums must stay small enough for the longdouble oracle.
    exact = trial.dtype == torch.float64
    elements = 1 << 15 if not trial.thorough else 1 << 16 if exact else 1 << 18
    wanted = max(rows, elements // length)
    if trial.device.type == "cuda" and length <= 256 and not exact:
        # More rows than a CUDA grid has in y or z.
        wanted = max(wanted, (1 << 16) + 5)
    drawn = torch.randint(rows, (wanted,), generator=trial.generator("rows"), device=trial.device)
    return with_lead(trial, inputs, drawn, (wanted,))
