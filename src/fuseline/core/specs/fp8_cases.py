"""What the specs of norms in float8_e4m3fn try alike: problem sizes, inputs, costs, bad inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuseline.core.specs import row_cases
from fuseline.core.specs.spec import Case, Cost, Direction, ErrorCase, Inputs

SUITE_DTYPES = {"quick": (torch.float32, torch.bfloat16), "fp8": (torch.bfloat16,)}
# Tokens, and the width of Llama 3 8B and 70B, of Qwen 2.5 7B and of DeepSeek V3.
_MODELS = ((8192, 4096), (8192, 8192), (8192, 3584), (4096, 7168))
_SUITES = {"quick", "check", "fp8"}


def cases() -> tuple[Case, ...]:
    """Return shapes with one scale a row and with blocks; suite "fp8": what models have."""
    shapes = (*row_cases.cases(""), *(row_cases.case(shape, "fp8") for shape in _MODELS))
    tried = [replace(c, suites=kept) for c in shapes if (kept := tuple(_SUITES & {*c.suites}))]
    bounded = row_cases.case((5, 193), "check")
    return (
        *(_by(case, block) for case in tried for block in (None, 128)),
        _by(bounded, None, 1.5),
        _by(bounded, 64, 1.5),
    )


def _by(case: Case, block: int | None, ub: float | None = None) -> Case:
    name = case.name + (f"-block_{block}" if block else "") + (f"-ub_{ub}" if ub else "")
    return replace(case, name=name, args={**case.args, "block": block, "scale_ub": ub})


def rows_and_parameters(
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
    rows: tuple[str, ...],
    parameters: tuple[str, ...],
) -> Inputs:
    """Return tensors of these names from N(0, 1), the parameters as the case has its weight."""
    shape = case.args["shape"]
    own = {"same": dtype, "float32": torch.float32}.get(case.args["weight"])

    def normal(shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor | None:
        if dtype is None:
            return None
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    of_rows = {name: normal(shape, dtype) for name in rows}
    return of_rows | {name: normal(shape[-1:], own) for name in parameters}


def make_inputs(
    rows: tuple[str, ...], parameters: tuple[str, ...]
) -> Callable[[Case, torch.dtype, torch.device, torch.Generator], Inputs]:
    """Return the inputs of an operator on tensors of these names."""

    def make(
        case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
    ) -> Inputs:
        tensors = rows_and_parameters(case, dtype, device, generator, rows, parameters)
        return {**tensors, "eps": 1e-6, **{k: case.args[k] for k in ("block", "scale_ub")}}

    return make


def cost(flops: int, inputs: Inputs, direction: Direction) -> Cost:
    """Return what one call takes, of which `flops` for each element."""
    x, block = inputs["x"], inputs["block"]
    tensors = [t for t in inputs.values() if isinstance(t, Tensor)]
    read = sum(t.numel() * t.element_size() for t in tensors)
    n = x.shape[-1]
    scales = x.numel() // max(n, 1) * (1 if block is None else -(-n // block))
    total = x.numel() * x.element_size() if "residual" in inputs else 0
    return Cost(read, x.numel() + 4 * scales + total, flops=flops * x.numel())


def with_options(case: ErrorCase) -> ErrorCase:
    """Return the case with options that are right, where it has none of its own."""
    good: Inputs = {"block": None, "scale_ub": None}
    return replace(case, make=lambda d: {**good, **case.make(d)})


def _forward_alone(rows: tuple[str, ...]) -> tuple[ErrorCase, ...]:
    """Return the bad inputs of x, the weight and eps."""

    def wanting(*shape: int) -> Callable[[torch.device], Tensor]:
        return lambda d: torch.randn(shape, device=d, requires_grad=True)

    bad = partial(row_cases.error_case, rows)
    return (
        *row_cases.errors(*rows),
        bad("double_x", TypeError, "x", "float64", "float32",
            x=lambda d: torch.randn(3, 8, device=d, dtype=torch.float64)),
        bad("x_requires_grad", RuntimeError, "x requires grad", "forward only", x=wanting(3, 8)),
        bad("weight_requires_grad", RuntimeError, "weight requires grad", "forward only",
            weight=wanting(8)),
    )  # fmt: skip


def errors_of_scale(*more: ErrorCase, **good: Any) -> tuple[ErrorCase, ...]:
    """Return the bad inputs of a norm of x by a given scale, whose other arguments are `good`."""
    bad = partial(row_cases.error_case, ("x",))
    own = (
        bad("scale_not_a_tensor", TypeError, "scale", "float", "Tensor", scale=0.5),
        bad("scale_dtype", TypeError, "scale", "float16", "float32",
            scale=lambda d: torch.ones(1, device=d).half()),
        bad("scale_of_two", ValueError, "scale", "(2,)", "one element",
            scale=lambda d: torch.ones(2, device=d)),
        bad("scale_device", ValueError, "scale", "meta",
            scale=lambda d: torch.ones(1, device="meta")),
    )  # fmt: skip

    def with_scale(case: ErrorCase) -> ErrorCase:
        return replace(
            case, make=lambda d: {**good, "scale": torch.ones(1, device=d), **case.make(d)}
        )

    return tuple(map(with_scale, (*_forward_alone(("x",)), *own, *more)))


def errors(rows: tuple[str, ...]) -> tuple[ErrorCase, ...]:
    """Return the bad inputs of every such norm: those of x, the weight, eps, and the options."""
    bad = partial(row_cases.error_case, rows)
    own = (
        bad("block_not_an_int", TypeError, "block", "float", "int", block=128.0),
        bad("block_no_power_of_two", ValueError, "block", "100", "power of two", block=100),
        bad("block_too_small", ValueError, "block", "8", "16", block=8),
        bad("block_too_large", ValueError, "block", "2048", "1024", block=2048),
        bad("scale_ub_zero", ValueError, "scale_ub", "0.0", "> 0", scale_ub=0.0),
        bad("scale_ub_nan", ValueError, "scale_ub", "nan", "> 0", scale_ub=float("nan")),
        bad("scale_ub_text", TypeError, "scale_ub", "str", "float or None", scale_ub="1200"),
    )  # fmt: skip
    return tuple(map(with_options, (*_forward_alone(rows), *own)))
