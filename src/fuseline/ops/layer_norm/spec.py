"""The row of layer_norm: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import fusion_cases, row_cases
from fuseline.core.specs.spec import (
    Budget,
    Case,
    Cost,
    Direction,
    Implementation,
    Inputs,
    OpSpec,
    ours,
    provided,
)
from fuseline.ops.layer_norm import impl_eager, reference
from fuseline.ops.layer_norm.op import SELECTOR, layer_norm


def _case(weight: str, bias: str) -> Case:
    """Return the rows with parameters of the "same" dtype, of "float32" or with "none"."""
    name = f"5x193-weight_{weight}-bias_{bias}"
    return Case(name, {"shape": (5, 193), "weight": weight, "bias": bias}, ("check",))


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    x = fusion_cases.normal(case, dtype, device, generator)

    def parameter(name: str) -> Tensor | None:
        chosen = {"same": dtype, "float32": torch.float32}.get(case.args.get(name, "same"))
        if chosen is None:
            return None
        return torch.randn(x.shape[-1:], dtype=chosen, device=device, generator=generator)

    return {"x": x, "weight": parameter("weight"), "bias": parameter("bias"), "eps": 1e-5}


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x = inputs["x"]
    size = x.numel() * x.element_size()
    weight, bias = (
        0 if p is None else p.numel() * p.element_size() for p in (inputs["weight"], inputs["bias"])
    )
    if direction == "fwd":
        return Cost(size + weight + bias, size, flops=8 * x.numel())
    saved = 2 * x.numel() // max(x.shape[-1], 1) * (8 if x.dtype == torch.float64 else 4)
    return Cost(2 * size + weight + saved, size + weight + bias, flops=14 * x.numel())


def _added(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor | None:
    return bias


def _native(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


_bad = partial(row_cases.error_case, ("x",))
_ERRORS = (
    *row_cases.errors("x"),
    _bad("bias_dtype", TypeError, "bias", "float16", "float32",
         bias=lambda d: torch.randn(8, device=d).half()),
    _bad("bias_length", ValueError, "bias", "(7,)", "(8,)",
         bias=lambda d: torch.randn(7, device=d)),
    _bad("bias_not_a_tensor", TypeError, "bias", "list", "None", bias=[0.0] * 8),
    _bad("bias_device", ValueError, "bias", "meta",
         bias=lambda d: torch.randn(8, device="meta")),
)  # fmt: skip

SPEC = OpSpec(
    name="layer_norm",
    formula="y = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias",
    reference=reference.layer_norm,
    longdouble=reference.longdouble,
    added=_added,
    implementations=(
        Implementation("eager", impl_eager.layer_norm, role="eager"),
        Implementation("native", _native, role="native"),
        *ours(layer_norm, SELECTOR, "cpu", "cuda", "triton"),
        *provided(layer_norm, SELECTOR, "aten"),
    ),
    make_inputs=_make_inputs,
    differentiable=("x", "weight", "bias"),
    contiguous=True,
    row_inputs=("x",),
    cases=(
        *fusion_cases.cases(),
        _case("float32", "float32"),
        _case("float32", "same"),
        _case("same", "float32"),
        _case("none", "none"),
        _case("none", "same"),
        _case("same", "none"),
    ),
    dtypes=DTYPES,
    suite_dtypes=fusion_cases.SUITE_DTYPES,
    cost=_cost,
    # xhat is rounded four times and, where the bias takes most of it away, is twice as large.
    budget=Budget(fp32_floor=7.0),
    error_cases=_ERRORS,
)
