"""Compiles an operator's formula by XLA and notes what came out."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import jax
import torch
from torch import Tensor

from fuselab.hlo.module import Module, parse, stable_operations
from fuselab.twin.program import program
from fuseline.core.specs.spec import Case, Direction, OpSpec


@dataclass(frozen=True)
class Hlo:
    """What XLA made of one direction of an operator on one problem.

    operations  StableHLO's, before optimisation, by name
    seconds     of compilation
    flops       by XLA's count; `transcendentals` likewise
    accessed    bytes that the steps read and write, by XLA's count
    ideal       bytes of each input read once and each output written once, by the operator's spec
    memory      bytes of arguments, outputs and temporaries
    """

    op: str
    case: str
    dtype: str
    direction: Direction
    platform: str
    software: str
    stable: str
    optimised: str
    operations: dict[str, int]
    module: Module
    seconds: float
    flops: float
    transcendentals: float
    accessed: float
    ideal: int
    memory: dict[str, int]


def compile_one(
    spec: OpSpec, case: Case, dtype: torch.dtype, direction: Direction, device: str
) -> Hlo:
    """Compile without running; RuntimeError where jax has no such device."""
    generator = torch.Generator().manual_seed(0)
    inputs = spec.inputs(case, dtype, torch.device("cpu"), generator)
    tensors = {name: t for name, t in inputs.items() if isinstance(t, Tensor)}
    values = {name: v for name, v in inputs.items() if name not in tensors}
    found = program(spec.name, tuple(tensors), values)
    shapes = [_shape(t) for t in tensors.values()]
    where = jax.devices("cpu" if device == "cpu" else "gpu")[0]
    with jax.default_device(where):
        if direction == "fwd":
            lowered = found.forward.lower(*shapes)
        else:
            outputs, vjp = jax.eval_shape(found.saving, *shapes)
            lowered = found.backward.lower(vjp, outputs)
        begin = perf_counter()
        compiled = lowered.compile()
        seconds = perf_counter() - begin
    stable, optimised = lowered.as_text(), compiled.as_text()
    cost = _only(compiled.cost_analysis())
    memory = compiled.memory_analysis()
    return Hlo(
        op=spec.name,
        case=case.name,
        dtype=str(dtype).removeprefix("torch."),
        direction=direction,
        platform=where.platform,
        software=f"jax {jax.__version__}",
        stable=stable,
        optimised=optimised,
        operations=stable_operations(stable),
        module=parse(optimised),
        seconds=seconds,
        flops=cost.get("flops", 0.0),
        transcendentals=cost.get("transcendentals", 0.0),
        accessed=cost.get("bytes accessed", 0.0),
        ideal=spec.cost(inputs, direction).bytes if spec.cost else 0,
        memory={
            part: getattr(memory, f"{field}_size_in_bytes")
            for part, field in (
                ("arguments", "argument"), ("outputs", "output"), ("temporaries", "temp"),
            )
        },
    )  # fmt: skip


def _shape(t: Tensor) -> jax.ShapeDtypeStruct:
    name = str(t.dtype).removeprefix("torch.")
    return jax.ShapeDtypeStruct(tuple(t.shape), jax.numpy.dtype(name))


def _only(cost: Any) -> dict[str, float]:
    """Return the only entry: older jax has a list, an entry a device."""
    return dict(cost[0] if isinstance(cost, list) else cost or {})
