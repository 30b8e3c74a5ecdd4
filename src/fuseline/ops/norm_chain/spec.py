"""The row of norm_chain: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fuseline.core.arguments import DTYPES
from fuseline.core.spec import (
    Budget,
    Case,
    Cost,
    Direction,
    ErrorCase,
    Implementation,
    Inputs,
    OpSpec,
)
from fuseline.ops.norm_chain import impl_eager, reference
from fuseline.ops.norm_chain.op import SELECTOR, norm_chain

_GRID = tuple(1 << k for k in range(7, 17))  # the study's
_QUICK = {(128, 128), (512, 1024), (1024, 4096), (4096, 4096)}
_CHECK = ((7, 1), (5, 2), (3, 61), (2, 3, 130), (65, 257), (9, 1027), (3, 5000), (2, 40001))


def _case(shape: tuple[int, ...], *suites: str) -> Case:
    return Case("x".join(map(str, shape)), {"shape": shape}, suites)


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    shape = case.args["shape"]
    n = max(shape[-1], 1)
    # Sums are 1 and an eighth more or less: their seventh power is to stay in the range of float16,
    # and of sums near 0 the formula leaves half types no digit to judge by.
    x = torch.randn(shape, dtype=dtype, device=device, generator=generator)
    return {"x": x.mul_(n**-0.5 / 8).add_(1 / n)}


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x = inputs["x"]
    size = x.numel() * x.element_size()
    if direction == "fwd":
        return Cost(size, size, flops=2 * x.numel())
    return Cost(2 * size + 8 * (x.numel() // max(x.shape[-1], 1)), size, flops=4 * x.numel())


def _bad(name: str, error: type[Exception], *match: str, x: object) -> ErrorCase:
    def make(device: torch.device) -> Inputs:
        return {"x": x.to(device) if isinstance(x, Tensor) else x}

    return ErrorCase(name, make, error, match)


SPEC = OpSpec(
    name="norm_chain",
    formula="x *= sum(x, -1), three times: y = x * sum(x, -1)^7",
    reference=reference.norm_chain,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.norm_chain, role="eager"),
        *(
            Implementation(
                name,
                partial(norm_chain, impl=name),
                unavailable=partial(SELECTOR.unavailable, name),
            )
            for name in ("cuda", "cpu", "triton")
        ),
    ),
    make_inputs=_make_inputs,
    differentiable=("x",),
    contiguous=True,
    row_inputs=("x",),
    cases=(
        *(
            _case((m, n), "fusion", *(("fusion-quick", "quick") if (m, n) in _QUICK else ()))
            for m in _GRID
            for n in _GRID
        ),
        *(_case(shape, "check") for shape in _CHECK),
    ),
    dtypes=DTYPES,
    suite_dtypes={
        "fusion": (torch.float32, torch.bfloat16),
        "fusion-quick": (torch.float32,),
        "quick": (torch.float32, torch.bfloat16),
    },
    cost=_cost,
    # The seventh power of a sum that cancels is wrong by seven times what torch's addition loses.
    budget=Budget(fp64_ratio=1.0),
    error_cases=(
        _bad("integer_x", TypeError, "x", "int64", "float32", x=torch.arange(24).view(3, 8)),
        _bad("not_a_tensor", TypeError, "x", "list", x=[1.0, 2.0]),
        _bad("scalar_x", ValueError, "x", "scalar", x=torch.ones(())),
    ),
)
