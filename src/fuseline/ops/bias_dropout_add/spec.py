"""The row of bias_dropout_add: how to try it, what it must cost, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.specs import fusion_cases
from fuseline.core.specs.spec import (
    Case,
    Cost,
    Direction,
    ErrorCase,
    Implementation,
    Inputs,
    OpSpec,
    ours,
)
from fuseline.ops.bias_dropout_add import impl_eager, reference
from fuseline.ops.bias_dropout_add.op import SELECTOR, bias_dropout_add

_LAYOUT = tuple((1 << k, n) for n in (1024, 128) for k in range(5, 17))  # the study's two tables
_CHECK = ((7, 1), (3, 61), (9, 1027), (2, 40001))


def _case(
    shape: tuple[int, ...],
    *suites: str,
    transposed: bool = False,
    bias: str = "same",
    p: float = 0.5,
    training: bool = False,
) -> Case:
    """Return a case; bias: "same" shape as x's or a "row"; transposed: bias and residual."""
    name = "x".join(map(str, shape))
    name += "-transposed" * transposed + "-row" * (bias == "row") + f"-p{p:g}" * training
    args = {"shape": shape, "transposed": transposed, "bias": bias, "p": p, "training": training}
    return Case(name, args, suites)


def _make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    shape = case.args["shape"]

    # Positive: where terms cancel, the formula leaves no digits to judge by.
    def drawn(shape: tuple[int, ...], transposed: bool = False) -> Tensor:
        given = shape[::-1] if transposed else shape
        t = torch.randn(given, dtype=dtype, device=device, generator=generator).abs_()
        return t.t() if transposed else t

    row, transposed = case.args["bias"] == "row", case.args["transposed"]
    return {
        "x": drawn(shape),
        "bias": drawn(shape[-1:]) if row else drawn(shape, transposed),
        "residual": drawn(shape, transposed),
        "p": case.args["p"],
        "training": case.args["training"],
        "seed": 20261122 if case.args["training"] else None,
    }


def _cost(inputs: Inputs, direction: Direction) -> Cost:
    x, bias = inputs["x"], inputs["bias"]
    size, bias_size = (t.numel() * t.element_size() for t in (x, bias))
    drops = inputs["training"] and inputs["p"] > 0
    if direction == "fwd":
        return Cost(2 * size + bias_size, size, flops=(2 + drops) * x.numel())
    # What is not dropped or broadcast passes dy on, which is no work at all.
    summed = bias_size if bias_size < size else 0
    read = size if drops or summed else 0
    return Cost(read, size * drops + summed, flops=(drops + (summed > 0)) * x.numel())


def _bad(name: str, error: type[Exception], *match: str, **change: object) -> ErrorCase:
    def make(device: torch.device) -> Inputs:
        good: Inputs = {n: torch.randn(3, 8, device=device) for n in ("x", "bias", "residual")}
        good |= {"p": 0.5, "training": True, "seed": 1}
        return good | {key: v(device) if callable(v) else v for key, v in change.items()}

    return ErrorCase(name, make, error, match)


def _random(
    *shape: int, device: str | None = None, dtype: torch.dtype = torch.float32
) -> Callable[[torch.device], Tensor]:
    return lambda d: torch.randn(shape, device=device or d).to(dtype)


_ERRORS = (
    _bad("integer_x", TypeError, "x", "int64", "float32", x=_random(3, 8, dtype=torch.int64)),
    _bad("not_a_tensor", TypeError, "x", "list", x=[1.0, 2.0]),
    _bad("scalar_x", ValueError, "x", "scalar", x=_random()),
    _bad("residual_shape", ValueError, "residual", "(8,)", "(3, 8)", residual=_random(8)),
    _bad("residual_dtype", TypeError, "residual", "float16", "float32",
         residual=_random(3, 8, dtype=torch.float16)),
    _bad("residual_device", ValueError, "residual", "meta", residual=_random(3, 8, device="meta")),
    _bad("bias_shape", ValueError, "bias", "(3,)", "(3, 8)", bias=_random(3)),
    _bad("bias_larger", ValueError, "bias", "(2, 3, 8)", "(3, 8)", bias=_random(2, 3, 8)),
    _bad("bias_dtype", TypeError, "bias", "float64", "float32",
         bias=_random(8, dtype=torch.float64)),
    _bad("bias_none", TypeError, "bias", "NoneType", "Tensor", bias=None),
    _bad("p_above_1", ValueError, "p", "1.5", "0 to 1", p=1.5),
    _bad("p_nan", ValueError, "p", "nan", "0 to 1", p=float("nan")),
    _bad("p_text", TypeError, "p", "str", "float", p="half"),
    _bad("seed_text", TypeError, "seed", "str", "int", seed="one"),
    _bad("seed_of_int32", ValueError, "seed", "int32", "int64",
         seed=lambda d: torch.ones((), dtype=torch.int32, device=d)),
    _bad("seed_of_two", ValueError, "seed", "(2,)", "()",
         seed=lambda d: torch.ones(2, dtype=torch.int64, device=d)),
    _bad("seed_elsewhere", ValueError, "seed", "meta",
         seed=torch.ones((), dtype=torch.int64, device="meta")),
    _bad("seed_too_large", ValueError, "seed", "18446744073709551616", "64 bits", seed=1 << 64),
)  # fmt: skip

SPEC = OpSpec(
    name="bias_dropout_add",
    formula="y = residual + dropout(x + bias), laid out as residual",
    reference=reference.bias_dropout_add,
    longdouble=reference.longdouble,
    implementations=(
        Implementation("eager", impl_eager.bias_dropout_add, role="eager"),
        *ours(bias_dropout_add, SELECTOR, "cpu", "triton"),
    ),
    make_inputs=_make_inputs,
    differentiable=("x", "bias", "residual"),
    # In training rows depend on their place; such cases are smaller than the oracle's chunks.
    row_inputs=("x", "bias", "residual"),
    cases=(
        *(_case(shape, *suites) for shape, suites in fusion_cases.grid()),
        *(_case(shape, "layout", transposed=True) for shape in _LAYOUT),
        *(_case(shape, "check") for shape in _CHECK),
        _case((5, 2), "check", training=True),
        *(_case((3, 40), "check", training=True, p=p) for p in (0.0, 1.0)),
        _case((9, 28), "check", transposed=True, training=True, p=0.1),
        _case((2, 3, 44), "check", bias="row", training=True, p=0.3),
        _case((2, 3, 130), "check", bias="row"),
        _case((65, 257), "check", transposed=True),
    ),
    dtypes=DTYPES,
    suite_dtypes={**fusion_cases.SUITE_DTYPES, "layout": (torch.float32,)},
    cost=_cost,
    error_cases=_ERRORS,
)
