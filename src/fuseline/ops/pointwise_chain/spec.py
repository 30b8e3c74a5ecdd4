"""The row of pointwise_chain: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

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
from fuseline.ops.pointwise_chain import impl_eager, reference
from fuseline.ops.pointwise_chain.op import SELECTOR, pointwise_chain


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x = inputs["x"]
    size = x.numel() * x.element_size()
    if direction == "fwd":
        return Cost(size, size, flops=4 * x.numel())
    return Cost(2 * size, size, flops=9 * x.numel())


SPEC = OpSpec(
    name="pointwise_chain",
    formula="y = max(x * cos(x), cos(x)) + x * cos(x)",
    reference=reference.pointwise_chain,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.pointwise_chain, role="eager"),
        *ours(pointwise_chain, SELECTOR, "cpu", "triton", "cuda"),
    ),
    make_inputs=fusion_cases.make_x,
    differentiable=("x",),
    contiguous=True,
    keeps_layout="x",
    row_inputs=("x",),
    cases=(*fusion_cases.cases(), Case("scalar", {"shape": ()}, ("check",))),
    dtypes=DTYPES,
    suite_dtypes=fusion_cases.SUITE_DTYPES,
    cost=_cost,
    # Eager loses all digits near x = -1 and is no yardstick there. A cosine within 1 ULP (CUDA's:
    # 2), times a factor that may double it, and two roundings: 3 (5).
    budget=Budget(fp32_floor=5.0),
    error_cases=tuple(e for e in fusion_cases.errors("x") if e.name != "scalar_x"),
)
