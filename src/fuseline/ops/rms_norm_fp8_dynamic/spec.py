"""The row of rms_norm_fp8_dynamic: how to try it, its costs, and what it is compared with."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor

from fuseline.core.norms_fp8 import DTYPES
from fuseline.core.specs import fp8_cases
from fuseline.core.specs.spec import Implementation, OpSpec, ours
from fuseline.ops.rms_norm_fp8_dynamic import impl_eager, reference
from fuseline.ops.rms_norm_fp8_dynamic.op import SELECTOR, rms_norm_fp8_dynamic
from fuseline.primitives.fp8 import quantised

_ROWS, _PARAMETERS = ("x",), ("weight",)


def _native(
    x: Tensor, weight: Tensor | None, eps: float, block: int | None, scale_ub: float | None
) -> tuple[Tensor, Tensor]:
    # Torch has no fused one: its norm in fp32, then the quantisation.
    wide = None if weight is None else weight.float()
    return quantised(F.rms_norm(x.float(), x.shape[-1:], wide, eps), block, scale_ub)


SPEC = OpSpec(
    name="rms_norm_fp8_dynamic",
    formula="v = x * rsqrt(mean(x^2) + eps) * weight; "
    "scale = amax(|v|) / 448; (v / scale in e4m3, scale)",
    reference=reference.rms_norm_fp8_dynamic,
    implementations=(
        Implementation("eager", impl_eager.rms_norm_fp8_dynamic, role="eager"),
        Implementation("native", _native, role="native"),
        *ours(rms_norm_fp8_dynamic, SELECTOR, "cpu", "triton"),
    ),
    make_inputs=fp8_cases.make_inputs(_ROWS, _PARAMETERS),
    contiguous=True,
    row_inputs=_ROWS,
    cases=fp8_cases.cases(),
    dtypes=DTYPES,
    suite_dtypes=fp8_cases.SUITE_DTYPES,
    cost=partial(fp8_cases.cost, 8),
    error_cases=fp8_cases.errors(_ROWS),
)
