"""A user's own file: one small operator, written twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from fuseline.testing import Case, Implementation, Inputs, OpSpec


def eager(x: Tensor, scale: float) -> Tensor:
    return x * torch.sigmoid(x) * scale


def right(x: Tensor, scale: float) -> Tensor:
    return torch.nn.functional.silu(x) * scale


@cache
def tell_pid() -> None:
    """Write which process calls, once: who kills it later must not find the file half written."""
    if "TOY_PID_FILE" in os.environ:
        Path(os.environ["TOY_PID_FILE"]).write_text(str(os.getpid()))


def make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    x = torch.randn(case.args["shape"], dtype=dtype, device=device, generator=generator)
    return {"x": x, "scale": 1.5}


def spec(name: str, *functions: Callable[..., Tensor]) -> OpSpec:
    chosen = tuple(Implementation(fn.__name__, fn) for fn in functions)
    return OpSpec(
        name=name,
        formula="y = x * sigmoid(x) * scale",
        reference=eager,
        implementations=(Implementation("eager", eager, role="eager"), *chosen),
        make_inputs=make_inputs,
        cases=(
            Case("small", {"shape": (64, 33)}, ("quick",)),
            Case("large", {"shape": (512, 512)}, ("full",)),
        ),
        dtypes=(torch.float32, torch.bfloat16),
        differentiable=("x",),
    )


SWISH = spec("swish", right)
