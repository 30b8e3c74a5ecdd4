"""The row of double_softmax: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import fusion_cases
from fuseline.core.specs.spec import Budget, Cost, Direction, Implementation, Inputs, OpSpec, ours
from fuseline.ops.double_softmax import impl_eager, reference
from fuseline.ops.double_softmax.op import SELECTOR, double_softmax


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x = inputs["x"]
    size = x.numel() * x.element_size()
    if direction == "fwd":
        return Cost(size, size, flops=8 * x.numel())  # an exponential counts as one
    stats = 3 * x.numel() // max(x.shape[-1], 1) * (8 if x.element_size() == 8 else 4)
    return Cost(2 * size + stats, size, flops=16 * x.numel())


SPEC = OpSpec(
    name="double_softmax",
    formula="p = exp(x - max(x)) / sum(exp(x - max(x))), y = the same of p",
    reference=reference.double_softmax,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.double_softmax, role="eager"),
        *ours(partial(double_softmax, dim=-1), SELECTOR, "cpu", "cuda"),
    ),
    make_inputs=fusion_cases.make_x,
    differentiable=("x",),
    contiguous=True,
    row_inputs=("x",),
    scores=("x",),
    cases=fusion_cases.cases(),
    dtypes=DTYPES,
    suite_dtypes=fusion_cases.SUITE_DTYPES,
    cost=_cost,
    # The rounding of x - max(x) is a relative error of its exponential.
    budget=Budget(fp64_ratio=2.0),
    error_cases=(*fusion_cases.errors("x"), *fusion_cases.dim_errors("x")),
)
