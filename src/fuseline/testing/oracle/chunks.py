"""Slices of a case's rows, so that the oracle's fp64 copies stay small."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fuseline.core.specs.spec import Inputs, OpSpec

CHUNK_ELEMENTS = 1 << 24
CPU_CHUNK_ELEMENTS = 1 << 19  # temporaries for its caches; the checker's crowd comes in one


@dataclass(frozen=True)
class Part:
    """A slice of a case: inputs, results of each call and output gradients of the same rows."""

    inputs: Inputs
    results: tuple[Mapping[str, Tensor], ...]
    dys: tuple[Tensor, ...] | None
    whole: bool


def ndim_of_row(spec: OpSpec, name: str) -> int:
    """Return how many trailing dimensions of an input make one row."""
    return 0 if name in spec.row_values else spec.row_ndim


def some_rows(spec: OpSpec, inputs: Inputs, rows: Tensor) -> Inputs:
    """Return the inputs with these rows alone, by their place among all."""
    of = {n: t for n in spec.row_inputs if isinstance(t := inputs.get(n), Tensor)}
    return {
        **inputs,
        **{
            n: t.reshape(-1, *t.shape[t.dim() - ndim_of_row(spec, n) :])[rows]
            for n, t in of.items()
        },
    }


def lead_of(spec: OpSpec, inputs: Inputs) -> torch.Size | None:
    """Return the leading sizes of all inputs with rows, None where they differ or none has any."""
    of = {n: t for n in spec.row_inputs if isinstance(t := inputs.get(n), Tensor)}
    leads = {t.shape[: t.dim() - ndim_of_row(spec, n)] for n, t in of.items()}
    return leads.pop() if len(leads) == 1 else None


def chunks(
    spec: OpSpec,
    inputs: Inputs,
    results: tuple[Mapping[str, Tensor], ...],
    dys: tuple[Tensor, ...] | None,
) -> Iterator[Part]:
    """Return the case as it is where it is small or has no rows, else slices of its rows."""
    rowed = {n: inputs[n] for n in spec.row_inputs if isinstance(inputs.get(n), Tensor)}
    largest = max((t.numel() for t in rowed.values()), default=0)
    lead = lead_of(spec, inputs)
    shared = set(inputs) - set(rowed)
    sliced = [{n: t for n, t in found.items() if n not in shared} for found in results]
    per_row = [*(t for found in sliced for t in found.values()), *(dys or ())]
    on_cpu = any(t.is_cpu for t in rowed.values())
    most = CPU_CHUNK_ELEMENTS if on_cpu else CHUNK_ELEMENTS
    if lead is None or largest <= most or any(t.shape[: len(lead)] != lead for t in per_row):
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
