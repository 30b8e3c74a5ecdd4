"""The row of layer_norm: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core import row_cases
from fuseline.core.arguments import DTYPES
from fuseline.core.spec import Budget, Case, Cost, Direction, Implementation, Inputs, OpSpec, ours
from fuseline.ops.layer_norm import impl_eager, reference
from fuseline.ops.layer_norm.op import SELECTOR, layer_norm

_GRID = tuple(1 << k for k in range(7, 17))  # the study's
_QUICK = {(128, 128), (512, 1024), (1024, 4096), (4096, 4096)}
_CHECK = ((7, 1), (5, 2), (3, 61), (2, 3, 130), (65, 257), (9, 1027), (3, 5000), (2, 40001))


def _case(shape: tuple[int, ...], *suites: str, weight: str = "same", bias: str = "same") -> Case:
    """Rows of one shape; weight and bias: "same" dtype as theirs, "float32" or "none"."""
    name = "x".join(map(str, shape))
    name += "" if weight == "same" else f"-weight_{weight}"
    name += "" if bias == "same" else f"-bias_{bias}"
    return Case(name, {"shape": shape, "weight": weight, "bias": bias}, suites)


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    shape, dtypes = case.args["shape"], {"same": dtype, "float32": torch.float32}

    def normal(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    def parameter(name: str) -> Tensor | None:
        chosen = dtypes.get(case.args[name])
        return None if chosen is None else normal(shape[-1:], chosen)

    x = normal(shape, dtype)
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
    implementations=(
        Implementation("eager", impl_eager.layer_norm, role="eager"),
        Implementation("native", _native, role="native"),
        *ours(layer_norm, SELECTOR, "cpu"),
    ),
    make_inputs=_make_inputs,
    differentiable=("x", "weight", "bias"),
    contiguous=True,
    row_inputs=("x",),
    cases=(
        *(
            _case((m, n), "fusion", *(("fusion-quick", "quick") if (m, n) in _QUICK else ()))
            for m in _GRID
            for n in _GRID
        ),
        *(_case(shape, "check") for shape in _CHECK),
        _case((5, 193), "check", weight="float32", bias="float32"),
        _case((5, 193), "check", weight="float32"),
        _case((5, 193), "check", bias="float32"),
        _case((5, 193), "check", weight="none", bias="none"),
        _case((5, 193), "check", weight="none"),
        _case((5, 193), "check", bias="none"),
    ),
    dtypes=DTYPES,
    suite_dtypes={
        "fusion": (torch.float32, torch.bfloat16),
        "fusion-quick": (torch.float32,),
        "quick": (torch.float32, torch.bfloat16),
    },
    cost=_cost,
    # Where the bias cancels the rest, the long double oracle has eleven bits more than eager.
    budget=Budget(fp64_ratio=2.0**-8),
    error_cases=_ERRORS,
)
