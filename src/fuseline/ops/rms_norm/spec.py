"""RMSNorm's row: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core.spec import (
    Case,
    Cost,
    Direction,
    ErrorCase,
    Implementation,
    Inputs,
    OpSpec,
    Tuning,
)
from fuseline.ops.rms_norm import impl_eager, reference
from fuseline.ops.rms_norm.op import DTYPES, SELECTOR, rms_norm, triton_candidates, triton_with

_SEED_ROWS = (128, 512, 2048)
_SEED_LENGTHS = (32, 61, 64, 128, 130, 256, 512, 1024, 1027, 2048, 4096, 8192, 16384)
_CHECK = ((7, 1), (5, 2), (3, 61), (2, 3, 130), (9, 1027), (65, 257), (3, 5000), (2, 40001))
_QUICK = {(4, 128, 32), (4, 128, 1027), (4, 512, 1024)}


def _case(shape: tuple[int, ...], *suites: str, weight: str = "same") -> Case:
    name = "x".join(map(str, shape)) + ("" if weight == "same" else f"-weight_{weight}")
    return Case(name, {"shape": shape, "weight": weight}, suites)


def _cases() -> tuple[Case, ...]:
    seed = [
        _case((4, rows, n), "seed-rmsnorm", *(("quick",) if (4, rows, n) in _QUICK else ()))
        for rows in _SEED_ROWS
        for n in _SEED_LENGTHS
    ]
    return (
        *seed,
        _case((8, 4096, 4096), "week12"),
        *(_case(shape, "check") for shape in _CHECK),
        _case((5, 193), "check", weight="float32"),
        _case((5, 193), "check", weight="none"),
        *(_case((4, n), "long") for n in (32768, 65536, 131072, 262144, 524288, 1048576)),
    )


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    shape = case.args["shape"]

    def normal(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    weight_dtype = {"same": dtype, "float32": torch.float32}.get(case.args["weight"])
    weight = None if weight_dtype is None else normal(shape[-1:], weight_dtype)
    return {"x": normal(shape, dtype), "weight": weight, "eps": 1e-6}


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x, weight = inputs["x"], inputs["weight"]
    bytes_x = x.numel() * x.element_size()
    bytes_w = 0 if weight is None else weight.numel() * weight.element_size()
    if direction == "fwd":
        return Cost(bytes_x + bytes_w, bytes_x, flops=4 * x.numel())
    rstd = x.numel() // max(x.shape[-1], 1) * (8 if x.dtype == torch.float64 else 4)
    return Cost(2 * bytes_x + bytes_w + rstd, bytes_x + bytes_w, flops=10 * x.numel())


def _native(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def _error(name: str, error: type[Exception], *match: str, **change: object) -> ErrorCase:
    def make(device: torch.device) -> Inputs:
        good: Inputs = {
            "x": torch.randn(3, 8, device=device),
            "weight": torch.randn(8, device=device),
            "eps": 1e-6,
        }
        return good | {key: v(device) if callable(v) else v for key, v in change.items()}

    return ErrorCase(name, make, error, match)


def _integers(device: torch.device) -> Tensor:
    return torch.arange(24, device=device).view(3, 8)


_ERRORS = (
    _error("integer_x", TypeError, "x", "int64", "float32", x=_integers),
    _error("scalar_x", ValueError, "x", "scalar", x=lambda d: torch.randn((), device=d)),
    _error("not_a_tensor", TypeError, "x", "list", x=[1.0, 2.0]),
    _error("weight_dtype", TypeError, "weight", "float16", "float32",
           weight=lambda d: torch.randn(8, device=d).half()),
    _error("weight_length", ValueError, "weight", "(7,)", "(8,)",
           weight=lambda d: torch.randn(7, device=d)),
    _error("weight_matrix", ValueError, "weight", "(1, 8)", "(8,)",
           weight=lambda d: torch.randn(1, 8, device=d)),
    _error("weight_device", ValueError, "weight", "meta",
           weight=lambda d: torch.randn(8, device="meta")),
    _error("negative_eps", ValueError, "eps", "-1", ">= 0", eps=-1.0),
    _error("nan_eps", ValueError, "eps", "nan", ">= 0", eps=float("nan")),
)  # fmt: skip

# Few rows show what waiting costs, many what bandwidth does: the ends of the seed's suite.
_FEW, _MANY, _MOST_ELEMENTS = 512, 8192, 1 << 25
_TUNED_ROWS = tuple(1 << k for k in range(6, 16))


def _tuning_cases(row: int | None) -> tuple[Case, ...]:
    n = row or 2 * _TUNED_ROWS[-1]
    many = min(_MANY, _MOST_ELEMENTS // n)
    return tuple(_case((rows, n)) for rows in dict.fromkeys((_FEW, many)))


def _tuning_proofs(row: int | None) -> tuple[Case, ...]:
    """Lengths within a class that no access and no tile divides."""
    n = row or 2 * _TUNED_ROWS[-1]
    return (_case((7, n - n // 4 + 1)), _case((67, n - 1), weight="float32"))


_TUNING = Tuning(
    impl="triton",
    shipped=Path(__file__).parent / "tuned",
    rows=_TUNED_ROWS,
    candidates=triton_candidates,
    cases=_tuning_cases,
    proofs=_tuning_proofs,
    call=triton_with,
)

SPEC = OpSpec(
    name="rms_norm",
    formula="y = x * rsqrt(mean(x^2) + eps) * weight",
    reference=reference.rms_norm,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.rms_norm, role="eager"),
        Implementation("native", _native, role="native"),
        *(
            Implementation(
                name,
                partial(rms_norm, impl=name),
                unavailable=partial(SELECTOR.unavailable, name),
            )
            for name in ("cpu", "triton", "cuda")
        ),
    ),
    make_inputs=_make_inputs,
    differentiable=("x", "weight"),
    contiguous=True,
    row_inputs=("x",),
    cases=_cases(),
    dtypes=DTYPES,
    suite_dtypes={"week12": (torch.bfloat16,), "quick": (torch.float32, torch.bfloat16)},
    cost=_cost,
    error_cases=_ERRORS,
    tuning=_TUNING,
)
