"""The row of softmax_backward: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import fusion_cases
from fuseline.core.specs.spec import (
    Budget,
    Case,
    Cost,
    Direction,
    Implementation,
    Inputs,
    OpSpec,
    ours,
)
from fuseline.ops.softmax_backward import impl_eager, reference
from fuseline.ops.softmax_backward.op import SELECTOR, softmax_backward

_NAMES = ("dy", "y")
_bad = partial(fusion_cases.error_case, _NAMES)


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    dy, x = (fusion_cases.normal(case, dtype, device, generator) for _ in _NAMES)
    return {"dy": dy, "y": torch.softmax(x, -1)}


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    y = inputs["y"]
    size = y.numel() * y.element_size()
    if direction == "fwd":
        return Cost(2 * size, size, flops=4 * y.numel())
    return Cost(3 * size, 2 * size, flops=9 * y.numel())


def _native(dy: Tensor, y: Tensor) -> Tensor:
    dx: Tensor = torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)
    return dx


SPEC = OpSpec(
    name="softmax_backward",
    formula="dx = y * (dy - sum(dy * y))",
    reference=reference.softmax_backward,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.softmax_backward, role="eager"),
        Implementation("native", _native, role="native"),
        *ours(softmax_backward, SELECTOR, "cpu", "cuda"),
    ),
    make_inputs=_make_inputs,
    differentiable=_NAMES,
    contiguous=True,
    row_inputs=_NAMES,
    cases=fusion_cases.cases(),
    dtypes=DTYPES,
    suite_dtypes=fusion_cases.SUITE_DTYPES,
    cost=_cost,
    budget=Budget(gradients=True),
    error_cases=(
        *fusion_cases.errors(*_NAMES),
        *fusion_cases.dim_errors(*_NAMES),
        _bad("y_shape", ValueError, "y", "(3, 7)", "(3, 8)", y=torch.ones(3, 7)),
        _bad("y_dtype", TypeError, "y", "float16", "float32", y=torch.ones(3, 8).half()),
        _bad("y_not_a_tensor", TypeError, "y", "float", y=1.0),
    ),
)
