"""Slices of a case's rows, so that the oracle's fp64 copies stay small."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fuseline.core.spec import Inputs, OpSpec

CHUNK_ELEMENTS = 1 << 24
CPU_CHUNK_ELEMENTS = 1 << 19  # temporaries for its caches; the checker's crowd comes in one


@dataclass(frozen=True)
class Part:
    """A slice of a case: inputs, results of each call and output gradients of the same rows."""

    inputs: Inputs
    results: tuple[Mapping[str, Tensor], ...]
    dys: tuple[Tensor, ...] | None
    whole: bool


def some_rows(spec: OpSpec, part: Part, rows: Tensor) -> Inputs:
    """Return the inputs with these rows alone, of a part whose rows have one dimension."""
    return {n: t[rows] if n in spec.row_inputs else t for n, t in part.inputs.items()}


def has_rows(spec: OpSpec, part: Part) -> bool:
    """Say whether all inputs with rows have these along one leading dimension, as results do."""
    rowed = [t for n in spec.row_inputs if isinstance(t := part.inputs.get(n), Tensor)]
    tensors = [*rowed, *(t for found in part.results for t in found.values())]
    return (
        bool(rowed)
        and all(t.dim() == spec.row_ndim + 1 for t in rowed)
        and len({t.shape[:1] for t in tensors}) == 1
    )


def chunks(
    spec: OpSpec,
    inputs: Inputs,
    results: tuple[Mapping[str, Tensor], ...],
    dys: tuple[Tensor, ...] | None,
) -> Iterator[Part]:
    """Return the case as it is where it is small or has no rows, else slices of its rows."""
    rowed = {n: inputs[n] for n in spec.row_inputs if isinstance(inputs.get(n), Tensor)}
    leads = {t.shape[: t.dim() - spec.row_ndim] for t in rowed.values()}
    largest = max((t.numel() for t in rowed.values()), default=0)
    lead = leads.pop() if len(leads) == 1 else torch.Size()
    shared = set(inputs) - set(rowed)
    sliced = [{n: t for n, t in found.items() if n not in shared} for found in results]
    per_row = [*(t for found in sliced for t in found.values()), *(dys or ())]
    odd = bool(leads) or any(t.shape[: len(lead)] != lead for t in per_row)
    on_cpu = any(t.is_cpu for t in rowed.values())
    most = CPU_CHUNK_ELEMENTS if on_cpu else CHUNK_ELEMENTS
    if odd or largest <= most:
        yield Part(inputs, results, dys, whole=True)
        return
    rows = math.prod(lead)
    step = max(1, most * rows // largest)

    def flat(t: Tensor) -> Tensor:
        return t.reshape(rows, *t.shape[len(lead) :])

    flat_inputs = {n: flat(t) for n, t in rowed.items()}
    flat_results = [{n: flat(t) for n, t in found.items()} for found in sliced]
    flat_dys = None if dys is None else [flat(dy) for dy in dys]
    for start in range(0, rows, step):
        cut = slice(start, start + step)
        yield Part(
            {**inputs, **{n: t[cut] for n, t in flat_inputs.items()}},
            tuple({n: t[cut] for n, t in found.items()} for found in flat_results),
            None if flat_dys is None else tuple(dy[cut] for dy in flat_dys),
            whole=False,
        )
