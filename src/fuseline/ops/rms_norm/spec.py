"""RMSNorm's row: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import row_cases
from fuseline.core.specs.spec import (
    Case,
    Cost,
    Direction,
    Implementation,
    Inputs,
    OpSpec,
    Tuning,
    ours,
    provided,
)
from fuseline.ops.rms_norm import impl_eager, reference
from fuseline.ops.rms_norm.op import SELECTOR, rms_norm, triton_candidates, triton_with
from fuseline.primitives.rms import statistics_dtype


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x, weight = inputs["x"], inputs["weight"]
    bytes_x = x.numel() * x.element_size()
    bytes_w = 0 if weight is None else weight.numel() * weight.element_size()
    if direction == "fwd":
        return Cost(bytes_x + bytes_w, bytes_x, flops=4 * x.numel())
    rstd = x.numel() // max(x.shape[-1], 1) * (8 if x.dtype == torch.float64 else 4)
    return Cost(2 * bytes_x + bytes_w + rstd, bytes_x + bytes_w, flops=10 * x.numel())


def _native(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    if weight is None or weight_offset == 0.0:
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    # Torch's own has no offset: the sum, then the norm, in the type of the statistics.
    h = x.to(statistics_dtype(x))
    return F.rms_norm(h, x.shape[-1:], weight_offset + weight.to(h.dtype), eps).to(x.dtype)


# Few rows show what waiting costs, many what bandwidth does: the ends of the seed's suite.
_FEW, _MANY, _MOST_ELEMENTS = 512, 8192, 1 << 25
_TUNED_ROWS = tuple(1 << k for k in range(6, 16))


def _tuning_cases(row: int | None) -> tuple[Case, ...]:
    n = row or 2 * _TUNED_ROWS[-1]
    many = min(_MANY, _MOST_ELEMENTS // n)
    return tuple(row_cases.case((rows, n)) for rows in dict.fromkeys((_FEW, many)))


def _tuning_proofs(row: int | None) -> tuple[Case, ...]:
    """Return lengths within a class that no access and no tile divides."""
    n = row or 2 * _TUNED_ROWS[-1]
    return (row_cases.case((7, n - n // 4 + 1)), row_cases.case((67, n - 1), weight="float32"))


_TUNING = Tuning(
    impl="triton",
    shipped=Path(__file__).parent / "tuned",
    rows=_TUNED_ROWS,
    candidates=triton_candidates,
    cases=_tuning_cases,
    proofs=_tuning_proofs,
    call=triton_with,
)

# Cases with an offset: rows for registers, and ones that are read twice.
_OFFSETS = (
    row_cases.case((5, 193), "check", offset=1.0),
    row_cases.case((3, 1024), "check", weight="float32", offset=1.0),
    row_cases.case((2, 40000), "check", offset=-0.25),
)

_bad = partial(row_cases.error_case, ("x",))
_ERRORS = (
    *row_cases.errors("x"),
    _bad("offset_without_weight", ValueError, "weight_offset", "1.0", "0 without a weight",
         weight=None, weight_offset=1.0),
    _bad("offset_not_finite", ValueError, "weight_offset", "inf", "finite",
         weight_offset=float("inf")),
    _bad("offset_not_a_number", TypeError, "weight_offset", "Tensor", "float",
         weight_offset=lambda d: torch.ones(8, device=d)),
)  # fmt: skip

SPEC = OpSpec(
    name="rms_norm",
    formula="y = x * rsqrt(mean(x^2) + eps) * (weight_offset + weight)",
    reference=reference.rms_norm,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.rms_norm, role="eager"),
        Implementation("native", _native, role="native"),
        *ours(rms_norm, SELECTOR, "cpu", "triton", "cuda"),
        *provided(rms_norm, SELECTOR, "aten"),
    ),
    make_inputs=row_cases.make_inputs("x"),
    differentiable=("x", "weight"),
    contiguous=True,
    row_inputs=("x",),
    cases=(*row_cases.cases("seed-rmsnorm"), *_OFFSETS, row_cases.case((8, 4096, 4096), "week12")),
    dtypes=DTYPES,
    suite_dtypes={"week12": (torch.bfloat16,), "quick": (torch.float32, torch.bfloat16)},
    cost=_cost,
    error_cases=_ERRORS,
    tuning=_TUNING,
)
