"""The oracle in numpy's long double, which torch lacks, for results of fp64."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from fuseline.core.spec import Direction, Inputs, OpSpec
from fuseline.testing.chunks import Part, some_rows
from fuseline.testing.ulps import ulp

# Where fp64 results and the fp64 reference differ by more, either may be wrong.
DOUBTFUL_ULP = 2.0
DOUBTFUL_ELEMENTS = 1 << 22


def evaluate(
    spec: OpSpec, inputs: Inputs, direction: Direction, dys: tuple[Tensor, ...] | None
) -> tuple[Any, ...]:
    """Return what `spec.longdouble` gives for tensors, as arrays of long double."""
    assert spec.longdouble is not None
    wide = {
        n: _widen(v) if isinstance(v, Tensor) and v.is_floating_point() else v
        for n, v in inputs.items()
    }
    seeds = [_widen(dy) for dy in dys or ()]
    dy = None if direction == "fwd" else seeds[0] if len(seeds) == 1 else tuple(seeds)
    with importlib.import_module("numpy").errstate(all="ignore"):
        found: tuple[Any, ...] = spec.longdouble(direction, dy, **wide)
    return found


def settle(spec: OpSpec, part: Part, refs: dict[str, Tensor]) -> None:
    """Replace rows of the fp64 reference from which fp64 results differ by those of long double."""
    doubts = [
        _doubts(found[name], ref)
        for name, ref in refs.items()
        for found in part.results
        if name in found and found[name].dtype == torch.float64 and found[name].shape == ref.shape
    ]
    if not doubts:
        return
    doubt = torch.stack(doubts).amax(0)
    size = max(t.numel() for n in spec.row_inputs if isinstance(t := part.inputs.get(n), Tensor))
    most = max(1, DOUBTFUL_ELEMENTS * len(doubt) // max(1, size))
    rows = doubt.topk(min(most, int((doubt > DOUBTFUL_ULP).sum()))).indices
    if len(rows) == 0:
        return
    for i, ref in enumerate(evaluate(spec, some_rows(spec, part, rows), "fwd", None)):
        refs[f"out{i}"][rows] = narrow(ref).to(refs[f"out{i}"].device)


def _doubts(out: Tensor, ref: Tensor) -> Tensor:
    """Return by how many ULP each row of a result is from the reference at most, 0 for NaN."""
    apart = ((out.detach() - ref).abs() / ulp(ref, torch.float64)).nan_to_num(0.0, 0.0)
    return apart.reshape(len(ref), -1).amax(1) if ref.numel() else apart.new_zeros(len(ref))


def difference(out: Tensor, ref: Any) -> Tensor:
    """Return result - reference, rounded once."""
    with importlib.import_module("numpy").errstate(invalid="ignore"):  # Inf - Inf
        return narrow(_widen(out) - ref)


def narrow(array: Any) -> Tensor:
    """Return an array rounded to fp64."""
    return torch.as_tensor(array.astype("float64"))  # of no dimensions: a scalar, no array


def _widen(tensor: Tensor) -> Any:
    numpy = importlib.import_module("numpy")
    return tensor.detach().cpu().to(torch.float64).numpy().astype(numpy.longdouble)
