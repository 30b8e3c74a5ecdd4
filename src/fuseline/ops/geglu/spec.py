"""The row of geglu: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import gated_cases
from fuseline.core.specs.spec import Budget, Case, ErrorCase, Implementation, Inputs, OpSpec, ours
from fuseline.ops.geglu import impl_eager, reference
from fuseline.ops.geglu.op import SELECTOR, geglu

_EITHER = {"quick", "check"}  # suites that try both formulas; what models have is that of tanh


def _cases() -> tuple[Case, ...]:
    own = gated_cases.cases()
    erf = (
        replace(c, name=f"{c.name}-none", suites=tuple(s for s in c.suites if s in _EITHER))
        for c in own
        if _EITHER.intersection(c.suites)
    )
    return (
        *(replace(c, args={**c.args, "approximate": "tanh"}) for c in own),
        *(replace(c, args={**c.args, "approximate": "none"}) for c in erf),
    )


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    made = gated_cases.make_inputs(case, dtype, device, generator)
    return {**made, "approximate": case.args["approximate"]}


_ONES = torch.ones(3, 8)

SPEC = OpSpec(
    name="geglu",
    formula="y = gelu(a) * b = a / 2 * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 * a^3))) * b; or erf",
    reference=reference.geglu,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.geglu, role="eager"),
        *ours(geglu, SELECTOR, "cuda", "cpu"),
    ),
    make_inputs=_make_inputs,
    differentiable=("a", "b"),
    contiguous=True,
    keeps_layout="a",
    row_inputs=("a", "b"),
    cases=_cases(),
    dtypes=DTYPES,
    suite_dtypes=gated_cases.SUITE_DTYPES,
    cost=partial(gated_cases.cost, (9, 19)),
    # As of bias_gelu: eager has no digits left where the result is small and is no yardstick there.
    budget=Budget(fp32_floor=12.0),
    error_cases=(
        *gated_cases.errors(),
        ErrorCase.changed(
            {"a": _ONES, "b": _ONES},
            "approximate",
            ValueError,
            "approximate",
            "erf",
            "tanh",
            "none",
            approximate="erf",
        ),
    ),
)
