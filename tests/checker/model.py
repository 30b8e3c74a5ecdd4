"""A small RMSNorm: right formulas, its oracle and its OpSpec, from which the wrong ones deviate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuseline.testing import Case, Implementation, OpSpec

CASES = (
    Case("5x61", {"shape": (5, 61)}),
    Case("3x2x128", {"shape": (3, 2, 128)}),
    Case("2x4096", {"shape": (2, 4096)}),
)


def eager(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * rstd(wide, eps) * weight).to(x.dtype)


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def rstd(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def gradients(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(dx, dweight), in the dtypes of x and weight."""
    wide, up = (t.to(torch.promote_types(x.dtype, torch.float32)) for t in (x, dy))
    scale = rstd(wide, eps)
    xhat = wide * scale
    wdy = up * weight
    dx = scale * (wdy - xhat * (wdy * xhat).mean(-1, keepdim=True))
    dweight = (up * xhat).reshape(-1, x.shape[-1]).sum(0)
    return dx.to(x.dtype).contiguous(), dweight.to(weight.dtype)


class RMSNorm(torch.autograd.Function):
    """The right operator by hand; a wrong one overrides the static method it gets wrong."""

    @classmethod
    def call(cls, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return cls.apply(x, weight, eps)

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return eager(x, weight, eps).contiguous()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return *gradients(dy, x, weight, ctx.eps), None


def make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> dict[str, Any]:
    shape = case.args["shape"]
    x = torch.randn(shape, generator=generator, dtype=torch.float64, device=device)
    weight = torch.randn(shape[-1:], generator=generator, dtype=torch.float64, device=device)
    return {"x": x.to(dtype), "weight": weight.to(dtype), "eps": 1e-5}


def spec(fn: Any) -> OpSpec:
    """The operator with one implementation to try, `tried`, besides eager."""
    return OpSpec(
        name="small_rms_norm",
        reference=reference,
        implementations=(Implementation("tried", fn), Implementation("eager", eager, "eager")),
        make_inputs=make_inputs,
        cases=CASES,
        dtypes=(torch.float32, torch.bfloat16, torch.float64),
        differentiable=("x", "weight"),
        relayout=("x", "weight"),
        row_inputs=("x",),
    )
