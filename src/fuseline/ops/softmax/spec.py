"""The softmax's row: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import fusion_cases
from fuseline.core.specs.spec import Budget, Implementation, OpSpec, ours, provided
from fuseline.ops.softmax import impl_eager, reference
from fuseline.ops.softmax.op import SELECTOR, softmax

SPEC = OpSpec(
    name="softmax",
    formula="y = exp(x - max(x)) / sum(exp(x - max(x)))",
    reference=reference.softmax,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.softmax, role="eager"),
        *ours(softmax, SELECTOR, "cpu", "cuda"),
        *provided(softmax, SELECTOR, "aten"),
    ),
    make_inputs=fusion_cases.make_x,
    differentiable=("x",),
    contiguous=True,
    row_inputs=("x",),
    scores=("x",),
    cases=fusion_cases.cases(),
    dtypes=DTYPES,
    suite_dtypes=fusion_cases.SUITE_DTYPES,
    cost=fusion_cases.softmax_cost,
    # The rounding of x - max(x) is a relative error of its exponential.
    budget=Budget(fp64_ratio=2.0),
    error_cases=(*fusion_cases.errors("x"), *fusion_cases.dim_errors("x")),
)
