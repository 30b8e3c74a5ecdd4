"""The row of norm_chain: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

import torch

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import fusion_cases
from fuseline.core.specs.spec import Case, Cost, Direction, Implementation, Inputs, OpSpec, ours
from fuseline.ops.norm_chain import impl_eager, reference
from fuseline.ops.norm_chain.op import SELECTOR, norm_chain


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    # Sums are 1 and an eighth more or less: their seventh power is to stay in the range of float16,
    # and of sums near 0 the formula leaves half types no digit to judge by.
    x = fusion_cases.normal(case, dtype, device, generator)
    n = max(x.shape[-1], 1)
    return {"x": x.mul_(n**-0.5 / 8).add_(1 / n)}


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x = inputs["x"]
    size = x.numel() * x.element_size()
    if direction == "fwd":
        return Cost(size, size, flops=2 * x.numel())
    return Cost(2 * size + 8 * (x.numel() // max(x.shape[-1], 1)), size, flops=4 * x.numel())


SPEC = OpSpec(
    name="norm_chain",
    formula="x *= sum(x, -1), three times: y = x * sum(x, -1)^7",
    reference=reference.norm_chain,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.norm_chain, role="eager"),
        *ours(norm_chain, SELECTOR, "cuda", "cpu", "triton"),
    ),
    make_inputs=_make_inputs,
    differentiable=("x",),
    contiguous=True,
    row_inputs=("x",),
    cases=fusion_cases.cases(),
    dtypes=DTYPES,
    suite_dtypes=fusion_cases.SUITE_DTYPES,
    cost=_cost,
    error_cases=fusion_cases.errors("x"),
)
