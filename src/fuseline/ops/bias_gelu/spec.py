"""The row of bias_gelu: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
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
from fuseline.ops.bias_gelu import impl_eager, reference
from fuseline.ops.bias_gelu.op import SELECTOR, bias_gelu

_EITHER = {"quick", "check"}  # suites that try both formulas; the study's is that of tanh


def _cases() -> tuple[Case, ...]:
    study = fusion_cases.cases()
    erf = (
        replace(c, name=f"{c.name}-none", suites=tuple(s for s in c.suites if s in _EITHER))
        for c in study
        if _EITHER.intersection(c.suites)
    )
    return (
        *(replace(c, args={**c.args, "approximate": "tanh"}) for c in study),
        *(replace(c, args={**c.args, "approximate": "none"}) for c in erf),
    )


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    x = fusion_cases.normal(case, dtype, device, generator)
    bias = torch.randn(x.shape[-1:], dtype=dtype, device=device, generator=generator)
    return {"x": x, "bias": bias, "approximate": case.args["approximate"]}


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x, bias = inputs["x"], inputs["bias"]
    size, row = x.numel() * x.element_size(), bias.numel() * bias.element_size()
    if direction == "fwd":
        return Cost(size + row, size, flops=9 * x.numel())
    return Cost(2 * size + row, size + row, flops=16 * x.numel())


def _native(x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    return F.gelu(x + bias, approximate=approximate)


_bad = partial(fusion_cases.error_case, ("x",))

SPEC = OpSpec(
    name="bias_gelu",
    formula="y = h / 2 * (1 + tanh(sqrt(2 / pi) * (h + 0.044715 * h^3))), h = x + bias; or erf",
    reference=reference.bias_gelu,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.bias_gelu, role="eager"),
        Implementation("native", _native, role="native"),
        *ours(bias_gelu, SELECTOR, "cuda", "cpu", "triton"),
    ),
    make_inputs=_make_inputs,
    differentiable=("x", "bias"),
    contiguous=True,
    keeps_layout="x",
    row_inputs=("x",),
    cases=_cases(),
    dtypes=DTYPES,
    suite_dtypes=fusion_cases.SUITE_DTYPES,
    cost=_cost,
    # Eager has no digits left where the result is small, and is no yardstick there. What is seen on
    # a CPU is 6.6 in fp32; CUDA's exponential and division are worse by some 1 ULP each, which y
    # may double.
    budget=Budget(fp32_floor=12.0),
    error_cases=(
        *fusion_cases.errors("x", "bias"),
        _bad("bias_length", ValueError, "bias", "(7,)", "(8,)", bias=torch.ones(7)),
        _bad("bias_matrix", ValueError, "bias", "(1, 8)", "(8,)", bias=torch.ones(1, 8)),
        _bad("bias_dtype", TypeError, "bias", "float16", "float32", bias=torch.ones(8).half()),
        _bad("bias_not_a_tensor", TypeError, "bias", "list", bias=[0.0] * 8),
        _bad(
            "approximate",
            ValueError,
            "approximate",
            "erf",
            "tanh",
            "none",
            bias=torch.ones(8),
            approximate="erf",
        ),
    ),
)
