"""The row of log_softmax: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import fusion_cases
from fuseline.core.specs.spec import Implementation, OpSpec, ours, provided
from fuseline.ops.log_softmax import impl_eager, reference
from fuseline.ops.log_softmax.op import SELECTOR, log_softmax

SPEC = OpSpec(
    name="log_softmax",
    formula="y = x - max(x) - log(sum(exp(x - max(x))))",
    reference=reference.log_softmax,
    longdouble=reference.longdouble,
    added=fusion_cases.sum_near_one,
    implementations=(
        Implementation("eager", impl_eager.log_softmax, role="eager"),
        *ours(log_softmax, SELECTOR, "cpu", "cuda"),
        *provided(log_softmax, SELECTOR, "aten"),
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
    error_cases=(*fusion_cases.errors("x"), *fusion_cases.dim_errors("x")),
)
