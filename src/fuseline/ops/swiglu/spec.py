"""The row of swiglu: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import gated_cases
from fuseline.core.specs.spec import Budget, Implementation, OpSpec, ours
from fuseline.ops.swiglu import impl_eager, reference
from fuseline.ops.swiglu.op import SELECTOR, swiglu

SPEC = OpSpec(
    name="swiglu",
    formula="y = silu(a) * b = a / (1 + exp(-a)) * b",
    reference=reference.swiglu,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.swiglu, role="eager"),
        *ours(swiglu, SELECTOR, "cuda", "cpu"),
    ),
    make_inputs=gated_cases.make_inputs,
    differentiable=("a", "b"),
    contiguous=True,
    keeps_layout="a",
    row_inputs=("a", "b"),
    cases=gated_cases.cases(),
    dtypes=DTYPES,
    suite_dtypes=gated_cases.SUITE_DTYPES,
    cost=partial(gated_cases.cost, (5, 12)),
    # An exponential and an inverse within 1 ULP, a sum and three products: 8 ULP if all agree.
    budget=Budget(fp32_floor=6.0),
    error_cases=gated_cases.errors(),
)
