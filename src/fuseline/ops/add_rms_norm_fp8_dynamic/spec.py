"""The row of add_rms_norm_fp8_dynamic: how to try it, its costs, and what it is compared with."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core.norms_fp8 import DTYPES
from fuseline.core.specs import fp8_cases, row_cases
from fuseline.core.specs.spec import Budget, Implementation, OpSpec, ours
from fuseline.ops.add_rms_norm_fp8_dynamic import impl_eager, reference
from fuseline.ops.add_rms_norm_fp8_dynamic.op import SELECTOR, add_rms_norm_fp8_dynamic
from fuseline.primitives.fp8 import quantised

_ROWS, _PARAMETERS = ("x", "residual"), ("weight",)


def _native(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    block: int | None,
    scale_ub: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    # Torch has no fused one: its addition and norm in fp32, then the quantisation.
    new_residual = x + residual
    wide = None if weight is None else weight.float()
    v = F.rms_norm(new_residual.float(), x.shape[-1:], wide, eps)
    return *quantised(v, block, scale_ub), new_residual


_bad = partial(row_cases.error_case, _ROWS)
_ERRORS = tuple(
    map(
        fp8_cases.with_options,
        (
            _bad("residual_not_a_tensor", TypeError, "residual", "NoneType", residual=None),
            _bad("residual_dtype", TypeError, "residual", "float16", "float32",
                 residual=lambda d: torch.randn(3, 8, device=d).half()),
            _bad("residual_shape", ValueError, "residual", "(8,)", "(3, 8)",
                 residual=lambda d: torch.randn(8, device=d)),
            _bad("residual_device", ValueError, "residual", "meta",
                 residual=lambda d: torch.randn(3, 8, device="meta")),
        ),
    )
)  # fmt: skip

SPEC = OpSpec(
    name="add_rms_norm_fp8_dynamic",
    formula="s = x + residual; v = s * rsqrt(mean(s^2) + eps) * weight; "
    "scale = amax(|v|) / 448; (v / scale in e4m3, scale, s)",
    reference=reference.add_rms_norm_fp8_dynamic,
    implementations=(
        Implementation("eager", impl_eager.add_rms_norm_fp8_dynamic, role="eager"),
        Implementation("native", _native, role="native"),
        *ours(add_rms_norm_fp8_dynamic, SELECTOR, "cpu", "triton"),
    ),
    make_inputs=fp8_cases.make_inputs(_ROWS, _PARAMETERS),
    contiguous=True,
    row_inputs=_ROWS,
    cases=fp8_cases.cases(),
    dtypes=DTYPES,
    suite_dtypes=fp8_cases.SUITE_DTYPES,
    cost=partial(fp8_cases.cost, 9),
    # The rounding of the sum to bf16 moves v by 2^-8 of it, and the scale: an eighth of e4m3's ULP.
    budget=Budget(e4m3_fwd_ulp=0.5 + 2.0**-3 + 2.0**-16),
    error_cases=(*fp8_cases.errors(_ROWS), *_ERRORS),
)
