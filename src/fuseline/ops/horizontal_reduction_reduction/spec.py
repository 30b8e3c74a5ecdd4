"""The row of horizontal_reduction_reduction: how to try it, what it must cost."""

from __future__ import annotations

import torch

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import fusion_cases
from fuseline.core.specs.spec import Cost, Direction, Implementation, Inputs, OpSpec, ours
from fuseline.ops.horizontal_reduction_reduction import impl_eager, reference
from fuseline.ops.horizontal_reduction_reduction.op import (
    SELECTOR,
    horizontal_reduction_reduction,
)


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x = inputs["x"]
    size = x.numel() * x.element_size()
    per_row = x.numel() // max(x.shape[-1], 1) * x.element_size()
    if direction == "fwd":
        return Cost(size, 2 * per_row, flops=2 * x.numel())
    counts = x.numel() // max(x.shape[-1], 1) * 8
    return Cost(size + 3 * per_row + counts, size, flops=x.numel())


SPEC = OpSpec(
    name="horizontal_reduction_reduction",
    formula="sum = sum(x, -1), amax = max(x, -1)",
    reference=reference.horizontal_reduction_reduction,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.horizontal_reduction_reduction, role="eager"),
        *ours(horizontal_reduction_reduction, SELECTOR, "cpu", "cuda"),
    ),
    make_inputs=fusion_cases.make_x,
    differentiable=("x",),
    contiguous=True,
    keeps_layout="x",
    row_inputs=("x",),
    cases=fusion_cases.cases(),
    dtypes=DTYPES,
    suite_dtypes=fusion_cases.SUITE_DTYPES,
    cost=_cost,
    error_cases=(
        *fusion_cases.errors("x"),
        fusion_cases.error_case(
            ("x",), "no_columns", ValueError, "x", "(3, 0)", "one column", x=torch.ones(3, 0)
        ),
    ),
)
