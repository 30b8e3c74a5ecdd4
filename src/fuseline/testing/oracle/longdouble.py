"""The oracle in numpy's long double, which torch lacks, for results of fp64."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fuseline.core.specs.spec import Direction, Inputs, OpSpec
from fuseline.testing.oracle.chunks import lead_of, some_rows
from fuseline.testing.oracle.ulps import ulp

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


def settle(
    spec: OpSpec,
    inputs: Inputs,
    results: tuple[Mapping[str, Tensor], ...],
    refs: dict[str, Tensor],
) -> None:
    """Replace rows of the fp64 reference from which fp64 results differ by those of long double.

    The most doubtful rows come first, DOUBTFUL_ELEMENTS at a time. More follow while a result that
    was within the budget there is beyond it in others: one that is wrong needs no more of them.
    """
    lead = lead_of(spec, inputs)
    if lead is None or any(ref.shape[: len(lead)] != lead for ref in refs.values()):
        return
    count = math.prod(lead)
    judged = [
        (name, found[name].detach().reshape(count, -1))
        for name, ref in refs.items()
        for found in results
        if name in found and found[name].dtype == torch.float64 and found[name].shape == ref.shape
        if ref.numel()
    ]
    if not judged or count == 0:
        return
    size = max(t.numel() for n in spec.row_inputs if isinstance(t := inputs.get(n), Tensor))
    most = max(1, DOUBTFUL_ELEMENTS * count // max(1, size))
    doubts = [_doubts(out, refs[name].reshape(count, -1)) for name, out in judged]
    least, limit = DOUBTFUL_ULP, max(DOUBTFUL_ULP, spec.budget.fp64_fwd_ulp)
    while doubts:
        doubt = torch.stack(doubts).amax(0)
        rows = doubt.topk(min(most, int((doubt > least).sum()))).indices
        if len(rows) == 0 or not _are_rows(spec, inputs, rows, refs):
            return
        for i, exact in enumerate(evaluate(spec, some_rows(spec, inputs, rows), "fwd", None)):
            ref = refs[f"out{i}"]
            flat = ref.reshape(count, -1).index_copy(
                0, rows, narrow(exact).to(ref.device).reshape(len(rows), -1)
            )
            refs[f"out{i}"] = flat.reshape(ref.shape)
        there = [_doubts(out[rows], refs[n].reshape(count, -1)[rows]).max() for n, out in judged]
        pairs = zip(judged, doubts, there, strict=True)
        kept = [(of, d.index_fill(0, rows, 0.0)) for of, d, most_ulp in pairs if most_ulp <= limit]
        judged, doubts = [of for of, _ in kept], [d for _, d in kept]
        least = limit


def _are_rows(spec: OpSpec, inputs: Inputs, rows: Tensor, refs: Mapping[str, Tensor]) -> bool:
    """Say whether rows alone give what they give among all: not if one knows its place."""
    wide = {
        n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
        for n, v in some_rows(spec, inputs, rows).items()
    }
    with torch.no_grad():
        found = spec.reference(**wide)
    of = (found,) if isinstance(found, Tensor) else tuple(found)
    return all(
        torch.allclose(
            y.reshape(len(rows), -1),
            refs[f"out{i}"].reshape(-1, y.numel() // len(rows))[rows],
            rtol=1e-6,
            equal_nan=True,
        )
        for i, y in enumerate(of)
    )


def _doubts(out: Tensor, ref: Tensor) -> Tensor:
    """Return by how many ULP each row of a result is from the reference at most, 0 for NaN."""
    apart = (out - ref).abs() / ulp(ref, torch.float64)
    return apart.nan_to_num(0.0, 0.0).amax(1)


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
