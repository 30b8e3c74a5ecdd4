"""The row of rms_norm_fp8: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core.norms_fp8 import DTYPES
from fuseline.core.specs import fp8_cases, row_cases
from fuseline.core.specs.spec import Case, Cost, Direction, Implementation, Inputs, OpSpec, ours
from fuseline.ops.rms_norm_fp8 import impl_eager, reference
from fuseline.ops.rms_norm_fp8.op import SELECTOR, rms_norm_fp8
from fuseline.primitives.fp8 import divided

# Of normal rows and weights it saturates few elements and makes few of them subnormal.
_SCALE = 0.013


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    rows = row_cases.make_inputs("x")(case, dtype, device, generator)
    return {**rows, "scale": torch.full((1,), _SCALE, device=device)}


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x, weight = inputs["x"], inputs["weight"]
    bytes_w = 0 if weight is None else weight.numel() * weight.element_size()
    return Cost(x.numel() * x.element_size() + bytes_w + 4, x.numel(), flops=5 * x.numel())


def _native(x: Tensor, weight: Tensor | None, scale: Tensor, eps: float) -> Tensor:
    # Torch has no fused one: its norm in fp32, then the quantisation.
    wide = None if weight is None else weight.float()
    return divided(F.rms_norm(x.float(), x.shape[-1:], wide, eps), scale.reshape(()))


SPEC = OpSpec(
    name="rms_norm_fp8",
    formula="y = x * rsqrt(mean(x^2) + eps) * weight / scale, in e4m3",
    reference=reference.rms_norm_fp8,
    implementations=(
        Implementation("eager", impl_eager.rms_norm_fp8, role="eager"),
        Implementation("native", _native, role="native"),
        *ours(rms_norm_fp8, SELECTOR, "cpu", "triton", "cuda"),
    ),
    make_inputs=_make_inputs,
    contiguous=True,
    row_inputs=("x",),
    cases=row_cases.cases("seed-rms_norm_fp8"),
    dtypes=DTYPES,
    suite_dtypes={"quick": (torch.float32, torch.bfloat16)},
    cost=_cost,
    error_cases=fp8_cases.errors_of_scale(),
)
