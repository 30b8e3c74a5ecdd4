"""Registers the rules with torch, by its public register_sharding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch

from fuseline.core.registration import contract
from fuseline.core.registration.contract import Contract
from fuseline.sharding.layouts import LAYOUTS, REPLICATED, Layout
from fuseline.sharding.placements import choices


@cache
def register_all() -> None:
    """Register every operator, as fuseline.sharding.register says, once."""
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError as error:
        raise RuntimeError(
            f"torch {torch.__version__} has no torch.distributed.tensor.experimental."
            "register_sharding, by which fuseline's operators take DTensors"
        ) from error
    for one, suffix in contract.variants:
        layout = LAYOUTS.get(one.name, REPLICATED)
        for name, outputs in zip(one.schemas(suffix), _outputs(one, layout), strict=True):
            op = getattr(torch.ops.fuseline, name).default
            rule = partial(_rule, layout, op, outputs)
            register_sharding(op)(rule)
            _know_all_arguments(op)


def _outputs(one: Contract, layout: Layout) -> Sequence[Sequence[str]]:
    """Return the names of the results of each of a contract's schemas."""
    plain = layout.outputs[: one.returns.count("Tensor")]
    found = [plain, plain]
    if one.function is not None:
        found += [layout.outputs] if one.fwd_returns else []
        gradients = one.gradients or layout.gradients
        found.append([f"d{name}" for name in gradients][: one.bwd_returns.count("Tensor")])
    return found


def _rule(layout: Layout, op: Any, outputs: Sequence[str], *args: Any, **options: Any) -> Any:
    """Return what placements of results go with what placements of arguments."""
    arguments = [a.name for a in op._schema.arguments]
    given = dict(zip(arguments, args, strict=False)) | options
    count = len(op._schema.returns)
    return choices(layout, outputs or [""] * count, given)


def _know_all_arguments(op: Any) -> None:
    """Let torch keep a rule's answer for all arguments: alone, register_sharding has it forget
    floats, bools and what is None, by which shapes and rules differ.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    kinds = [str(a.type) for a in op._schema.arguments]
    first = next((i for i, kind in enumerate(kinds) if kind != "Tensor"), len(kinds))
    known = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    known[op] = RuntimeSchemaInfo(first, needs_pytree=True)
