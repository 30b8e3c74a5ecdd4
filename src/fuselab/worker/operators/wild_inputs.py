"""Problems of the suite `wild` as inputs: an operator's own, in another shape, dim and layout."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuselab.planning import wild
from fuselab.planning.wild import Layout, WildError
from fuseline.core.specs import spec_fields
from fuseline.core.specs.spec import Case, Cost, Direction, Inputs, OpSpec

# The argument of a case that makes an operator's shapes free.
SHAPE = "shape"
PEAK = 32.0  # times normal numbers: exponentials of rows of a thousand end some 200 below the first


def takes_dim(spec: OpSpec) -> bool:
    """Return whether the operator works along a dim of the caller's."""
    return "dim" in (spec_fields.parameters(spec.reference) or ())


def ranks(spec: OpSpec) -> tuple[int, ...]:
    """Return how many dimensions the operator's tensors may have: those of its cases, 4 at most.

    One whose cases have several takes any.
    """
    shapes = (case.args.get(SHAPE) for case in spec.cases)
    found = {len(shape) for shape in shapes if isinstance(shape, (tuple, list))}
    return wild.RANKS if len(found) > 1 else tuple(found.intersection(wild.RANKS)) or wild.RANKS


def rows_of(spec: OpSpec) -> tuple[tuple[int, ...], ...]:
    """Return the shapes that one row of the operator may have; none where it may have any.

    An operator whose cases have an argument `shape` takes any; others keep the rows of a case of
    theirs, in other numbers. Raises WildError without `row_inputs`.
    """
    if not spec.row_inputs or not spec.cases:
        lacks = "row_inputs" if spec.cases else "cases"
        raise WildError(f"operator {spec.name!r}: {lacks}: got none, which suite wild starts from")
    template = _template(spec)
    if SHAPE in template.args:
        return ()
    cpu = torch.device("cpu")
    found = spec.inputs(template, spec.dtypes[0], cpu, torch.Generator(cpu))
    return tuple(tuple(found[n].shape[-spec.row_ndim :]) for n in _row_names(spec, found)[:1])


def values_of(spec: OpSpec) -> tuple[str, ...]:
    """Return which of wild.VALUES the operator's inputs may have."""
    return wild.VALUES if spec.scores else (wild.PENALTY,)


def problem(spec: OpSpec, name: str) -> tuple[OpSpec, Case]:
    """Return the case of that name, and the spec with what makes its inputs."""
    shape = wild.parse(name)
    if shape.dim is not None and not takes_dim(spec):
        raise WildError(f"case: got {name!r}, expected no dim: {spec.name} takes none")
    if shape.values not in ("", *values_of(spec)):
        raise WildError(
            f"case: got {name!r}, expected no {shape.values}: {spec.name} has no `scores`"
        )
    own = _template(spec)
    free = SHAPE in own.args
    if free:
        own = replace(own, args={**own.args, SHAPE: shape.sizes})

    def make_inputs(
        case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
    ) -> Inputs:
        found = spec.make_inputs(own, dtype, device, generator)
        if not free:
            found = _with_rows(spec, found, shape.sizes[0], generator)
        if shape.dim is not None:  # from the end: the oracle makes one dim of those before
            found["dim"] = shape.dim - len(shape.sizes)
        rowed = _row_names(spec, found)
        for n in rowed if shape.values == wild.PENALTY else spec.scores:
            found[n] = fill(found[n], shape.values, found.get("dim", -1), generator)
        return {**found, **{n: lay(found[n], shape.layout) for n in rowed}}

    def cost(inputs: Inputs, direction: Direction) -> Cost:
        """Count what is expanded once."""
        assert spec.cost is not None
        whole = spec.cost(inputs, direction)
        repeated = sum(_repeated(inputs[n]) for n in _row_names(spec, inputs))
        read = whole.bytes_read - repeated * (direction == "fwd")
        return replace(whole, bytes_read=read)

    changed: dict[str, Any] = {"make_inputs": make_inputs, "cost": spec.cost and cost}
    if shape.dim is not None:  # what lies before it is independent
        changed["row_ndim"] = len(shape.sizes) - shape.dim
    return replace(spec, **changed), Case(name, own.args, (wild.SUITE,))


def fill(tensor: Tensor, values: str, dim: int, generator: torch.Generator) -> Tensor:
    """Return a floating tensor with those of wild.VALUES along a dim; another as it is."""
    if not values or not tensor.is_floating_point() or not tensor.numel():
        return tensor
    if values == wild.PEAKED:
        return tensor * PEAK
    n, device = tensor.shape[dim], tensor.device
    rows = tensor.movedim(dim, -1)
    kept = torch.randint(1, n + 1, (*rows.shape[:-1], 1), device=device, generator=generator)
    behind = (torch.arange(n, device=device) >= kept).movedim(-1, dim)
    return tensor.masked_fill(behind, -math.inf if values == wild.MASKED else -1e4)


def lay(tensor: Tensor, layout: Layout) -> Tensor:
    """Return the tensor's values in that layout, NaN (1 of integers) in its gaps."""
    if layout == Layout():
        return tensor
    if layout.word == "transposed":
        return tensor.mT.contiguous().mT
    if layout.word == "permuted":
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout.word == "expanded":
        return tensor[:1].expand(tensor.shape)
    *lead, n = tensor.shape
    row = n * layout.step + layout.gap
    gaps = math.nan if tensor.is_floating_point() else 1
    memory = tensor.new_full((layout.offset + math.prod(lead) * row,), gaps)
    rows = memory[layout.offset :].view(*lead, row)
    return rows[..., : n * layout.step : layout.step].copy_(tensor)


def _template(spec: OpSpec) -> Case:
    """Return the case whose other arguments wild problems have: the first that is checked."""
    return next((case for case in spec.cases if "check" in case.suites), spec.cases[0])


def _row_names(spec: OpSpec, inputs: Inputs) -> list[str]:
    """Return the inputs that have the rows: one that is broadcast over them has fewer dims."""
    ranks = {n: t.dim() for n in spec.row_inputs if isinstance(t := inputs.get(n), Tensor)}
    return [n for n, rank in ranks.items() if rank == max(ranks.values())]


def _with_rows(spec: OpSpec, inputs: Inputs, rows: int, generator: torch.Generator) -> Inputs:
    """Return the inputs with so many of their rows, drawn among those that they have."""
    found = dict(inputs)
    for n in _row_names(spec, inputs):
        whole = inputs[n].reshape(-1, *inputs[n].shape[-spec.row_ndim :])
        some = torch.randint(len(whole), (rows,), device=whole.device, generator=generator)
        found[n] = whole[some]
    return found


def _repeated(tensor: Tensor) -> int:
    """Return the bytes of elements that are another's."""
    own = math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return (tensor.numel() - own) * tensor.element_size()
