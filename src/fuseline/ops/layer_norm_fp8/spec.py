"""The row of layer_norm_fp8: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core import fp8_cases, row_cases
from fuseline.core.norms_fp8 import DTYPES
from fuseline.core.spec import (
    Case,
    Cost,
    Direction,
    ErrorCase,
    Implementation,
    Inputs,
    OpSpec,
    ours,
)
from fuseline.ops.layer_norm_fp8 import impl_eager, reference
from fuseline.ops.layer_norm_fp8.op import SELECTOR, layer_norm_fp8
from fuseline.primitives.fp8 import divided

# Of normal rows and parameters it saturates few elements and makes few of them subnormal.
_SCALE = 0.013


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    named = ("x",), ("weight", "bias")
    tensors = fp8_cases.rows_and_parameters(case, dtype, device, generator, *named)
    return {**tensors, "scale": torch.full((1,), _SCALE, device=device), "eps": 1e-5}


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x = inputs["x"]
    read = sum(t.numel() * t.element_size() for t in inputs.values() if isinstance(t, Tensor))
    return Cost(read, x.numel(), flops=9 * x.numel())


def _native(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, scale: Tensor, eps: float
) -> Tensor:
    # Torch has no fused one: its norm in fp32, then the quantisation.
    w, b = (None if p is None else p.float() for p in (weight, bias))
    return divided(F.layer_norm(x.float(), x.shape[-1:], w, b, eps), scale.reshape(()))


def _with_scale(case: ErrorCase) -> ErrorCase:
    good: dict[str, Any] = {"bias": None}
    return replace(case, make=lambda d: {**good, "scale": torch.ones(1, device=d), **case.make(d)})


_bad = partial(row_cases.error_case, ("x",))
_ERRORS = (
    *row_cases.errors("x"),
    _bad("double_x", TypeError, "x", "float64", "float32",
         x=lambda d: torch.randn(3, 8, device=d, dtype=torch.float64)),
    _bad("bias_length", ValueError, "bias", "(7,)", "(8,)",
         bias=lambda d: torch.randn(7, device=d)),
    _bad("bias_requires_grad", RuntimeError, "bias requires grad", "forward only",
         bias=lambda d: torch.randn(8, device=d, requires_grad=True)),
    _bad("scale_not_a_tensor", TypeError, "scale", "float", "Tensor", scale=0.5),
    _bad("scale_dtype", TypeError, "scale", "float16", "float32",
         scale=lambda d: torch.ones(1, device=d).half()),
    _bad("scale_of_two", ValueError, "scale", "(2,)", "one element",
         scale=lambda d: torch.ones(2, device=d)),
    _bad("scale_device", ValueError, "scale", "meta",
         scale=lambda d: torch.ones(1, device="meta")),
)  # fmt: skip

SPEC = OpSpec(
    name="layer_norm_fp8",
    formula="y = ((x - mean(x)) * rsqrt(var(x) + eps) * weight + bias) / scale, in e4m3",
    reference=reference.layer_norm_fp8,
    implementations=(
        Implementation("eager", impl_eager.layer_norm_fp8, role="eager"),
        Implementation("native", _native, role="native"),
        *ours(layer_norm_fp8, SELECTOR, "cpu", "triton"),
    ),
    make_inputs=_make_inputs,
    contiguous=True,
    row_inputs=("x",),
    cases=row_cases.cases("seed-layer_norm_fp8"),
    dtypes=DTYPES,
    suite_dtypes={"quick": (torch.float32, torch.bfloat16)},
    cost=_cost,
    error_cases=tuple(map(_with_scale, _ERRORS)),
)
