"""The row of horizontal_reduction_pointwise: how to try it, what it must cost."""

from __future__ import annotations

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import fusion_cases
from fuseline.core.specs.spec import Cost, Direction, Implementation, Inputs, OpSpec, ours
from fuseline.ops.horizontal_reduction_pointwise import impl_eager, reference
from fuseline.ops.horizontal_reduction_pointwise.op import (
    SELECTOR,
    horizontal_reduction_pointwise,
)


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x = inputs["x"]
    size = x.numel() * x.element_size()
    per_row = x.numel() // max(x.shape[-1], 1) * x.element_size()
    if direction == "fwd":
        return Cost(size, size + per_row, flops=2 * x.numel())
    return Cost(2 * size + per_row, size, flops=3 * x.numel())


SPEC = OpSpec(
    name="horizontal_reduction_pointwise",
    formula="sum = sum(x, -1), cos = cos(x)",
    reference=reference.horizontal_reduction_pointwise,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.horizontal_reduction_pointwise, role="eager"),
        *ours(horizontal_reduction_pointwise, SELECTOR, "cpu", "cuda"),
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
    error_cases=fusion_cases.errors("x"),
)
