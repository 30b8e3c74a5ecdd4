"""The row of add_rms_norm: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import row_cases
from fuseline.core.specs.spec import Cost, Direction, Implementation, Inputs, OpSpec, ours
from fuseline.ops.add_rms_norm import impl_eager, reference
from fuseline.ops.add_rms_norm.op import SELECTOR, add_rms_norm

_ROWS = ("x", "residual")


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x, weight = inputs["x"], inputs["weight"]
    bytes_x = x.numel() * x.element_size()
    bytes_w = 0 if weight is None else weight.numel() * weight.element_size()
    if direction == "fwd":
        return Cost(2 * bytes_x + bytes_w, 2 * bytes_x, flops=5 * x.numel())
    # The gradients of x and residual are one tensor, written once and returned twice.
    rstd = x.numel() // max(x.shape[-1], 1) * (8 if x.dtype == torch.float64 else 4)
    return Cost(3 * bytes_x + bytes_w + rstd, bytes_x + bytes_w, flops=11 * x.numel())


def _native(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    new_residual = x + residual
    return F.rms_norm(new_residual, x.shape[-1:], weight, eps), new_residual


_bad = partial(row_cases.error_case, _ROWS)
_ERRORS = (
    *row_cases.errors(*_ROWS),
    _bad("residual_not_a_tensor", TypeError, "residual", "NoneType", "Tensor", residual=None),
    _bad("residual_dtype", TypeError, "residual", "float16", "float32",
         residual=lambda d: torch.randn(3, 8, device=d).half()),
    _bad("residual_shape", ValueError, "residual", "(8,)", "(3, 8)",
         residual=lambda d: torch.randn(8, device=d)),
    _bad("residual_device", ValueError, "residual", "meta",
         residual=lambda d: torch.randn(3, 8, device="meta")),
    _bad("residual_layout", TypeError, "residual", "sparse", "strided",
         residual=lambda d: torch.randn(3, 8, device=d).to_sparse()),
)  # fmt: skip

SPEC = OpSpec(
    name="add_rms_norm",
    formula="h = x + residual; y = h * rsqrt(mean(h^2) + eps) * weight; (y, h)",
    reference=reference.add_rms_norm,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.add_rms_norm, role="eager"),
        # Torch has no fused one: its addition, then its fused norm.
        Implementation("native", _native, role="native"),
        *ours(add_rms_norm, SELECTOR, "cpu", "triton", "cuda"),
    ),
    make_inputs=row_cases.make_inputs(*_ROWS),
    differentiable=(*_ROWS, "weight"),
    contiguous=True,
    row_inputs=_ROWS,
    cases=row_cases.cases("seed-add_rms_norm"),
    dtypes=DTYPES,
    suite_dtypes={"quick": (torch.float32, torch.bfloat16)},
    cost=_cost,
    error_cases=_ERRORS,
)
