"""The row of layer_norm_fp8: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core.norms_fp8 import DTYPES
from fuseline.core.specs import fp8_cases, row_cases
from fuseline.core.specs.spec import Case, Cost, Direction, Implementation, Inputs, OpSpec, ours
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


_bad = partial(row_cases.error_case, ("x",))
_ERRORS = (
    _bad("bias_length", ValueError, "bias", "(7,)", "(8,)",
         bias=lambda d: torch.randn(7, device=d)),
    _bad("bias_requires_grad", RuntimeError, "bias requires grad", "forward only",
         bias=lambda d: torch.randn(8, device=d, requires_grad=True)),
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
    error_cases=fp8_cases.errors_of_scale(*_ERRORS, bias=None),
)
