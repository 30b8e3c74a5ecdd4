"""The row of layer_norm_fp8_dynamic: how to try it, its costs, and what it is compared with."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core.norms_fp8 import DTYPES
from fuseline.core.specs import fp8_cases, row_cases
from fuseline.core.specs.spec import Implementation, OpSpec, ours
from fuseline.ops.layer_norm_fp8_dynamic import impl_eager, reference
from fuseline.ops.layer_norm_fp8_dynamic.op import SELECTOR, layer_norm_fp8_dynamic
from fuseline.primitives.fp8 import quantised

_ROWS, _PARAMETERS = ("x",), ("weight", "bias")


def _native(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    block: int | None,
    scale_ub: float | None,
) -> tuple[Tensor, Tensor]:
    # Torch has no fused one: its norm in fp32, then the quantisation.
    w, b = (None if p is None else p.float() for p in (weight, bias))
    return quantised(F.layer_norm(x.float(), x.shape[-1:], w, b, eps), block, scale_ub)


_bad = partial(row_cases.error_case, _ROWS)
_ERRORS = tuple(
    map(
        fp8_cases.with_options,
        (
            _bad("bias_dtype", TypeError, "bias", "float16", "float32",
                 bias=lambda d: torch.randn(8, device=d).half()),
            _bad("bias_length", ValueError, "bias", "(7,)", "(8,)",
                 bias=lambda d: torch.randn(7, device=d)),
            _bad("bias_not_a_tensor", TypeError, "bias", "list", "None", bias=[0.0] * 8),
        ),
    )
)  # fmt: skip

SPEC = OpSpec(
    name="layer_norm_fp8_dynamic",
    formula="v = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias; "
    "scale = amax(|v|) / 448; (v / scale in e4m3, scale)",
    reference=reference.layer_norm_fp8_dynamic,
    implementations=(
        Implementation("eager", impl_eager.layer_norm_fp8_dynamic, role="eager"),
        Implementation("native", _native, role="native"),
        *ours(layer_norm_fp8_dynamic, SELECTOR, "cpu", "triton"),
    ),
    make_inputs=fp8_cases.make_inputs(_ROWS, _PARAMETERS),
    contiguous=True,
    row_inputs=_ROWS,
    cases=fp8_cases.cases(),
    dtypes=DTYPES,
    suite_dtypes=fp8_cases.SUITE_DTYPES,
    cost=partial(fp8_cases.cost, 11),
    error_cases=(*fp8_cases.errors(_ROWS), *_ERRORS),
)
