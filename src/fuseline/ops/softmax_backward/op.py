"""The contract of softmax_backward: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.registration import contract, operator
from fuseline.ops.softmax_backward import impl_eager
from fuseline.primitives import softmax as formulas

_NAME = "softmax_backward"


def softmax_backward(dy: Tensor, y: Tensor, dim: int = -1, impl: str = "auto") -> Tensor:
    """Return the gradient of the softmax's input over one dimension.

    dx = y * (dy - sum(dy * y))

    dy    the gradient of y; float64, float32, float16 or bfloat16, at least one dimension; any
          layout. One copy at most, none if the last stride is 1 and the dimensions before dim, and
          those after it, each collapse to one stride.
    y     what the softmax returned, of dy's shape and dtype; any layout, as dy.
    dim   any; nothing is moved to the end for it.
    impl  "auto", or one of "cuda", "cpu", "eager" (the plain formula, which rounds four times).

    Returns dx, contiguous, with dy's shape and dtype, computed in float32 (float64 for float64) and
    rounded once. Saved for its own gradients: dy and y. Deterministic.
    Raises TypeError (dtype, dim), ValueError (shape, device, dim, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: torch.ops.aten._softmax_backward_data.
    """
    dx: Tensor = operator.call(SELECTOR, validate, softmax_backward, impl, dy, y, dim)
    return dx


def validate(dy: Tensor, y: Tensor, dim: int) -> None:
    """Refuse what no implementation takes."""
    arguments.require_along(_NAME, dim, dy, "dy")
    arguments.require_twin(_NAME, "y", y, dy, "dy")


def _fake(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    validate(dy, y, dim)
    return dy.new_empty(dy.shape)


def decomposed(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(dy, y, dim)
    return formulas.gradient(dy, y, dim)


def _fake_bwd(ddx: Tensor, dy: Tensor, y: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    validate(dy, y, dim)
    arguments.require_twin(_NAME, "ddx", ddx, dy, "dy")
    return dy.new_empty(dy.shape), y.new_empty(y.shape)


def _function(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> type[torch.autograd.Function]:
    class SoftmaxBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, dy: Tensor, y: Tensor, dim: int) -> Tensor:
            ctx.save_for_backward(dy, y)
            ctx.dim = dim
            dx: Tensor = fwd(dy, y, dim)
            return dx

        @staticmethod
        def backward(ctx: Any, ddx: Tensor) -> tuple[Tensor | None, ...]:
            (dy, y), dim, needs = ctx.saved_tensors, ctx.dim, ctx.needs_input_grad
            if contract.wants_graph((ddx, dy, y)):
                return contract.differentiable_backward(decomposed, (dy, y, dim), needs, ddx)
            if not needs[1]:  # the formula again
                return fwd(ddx, y, dim), None, None
            of_dy, of_y = bwd(ddx, dy, y, dim)
            return of_dy if needs[0] else None, of_y, None

    return SoftmaxBackward


def _eager(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    validate(dy, y, dim)
    return impl_eager.softmax_backward(dy, y, dim).contiguous()


CONTRACT = contract.Contract(
    name=_NAME,
    args="Tensor dy, Tensor y, int dim",
    bwd_args="Tensor ddx, Tensor dy, Tensor y, int dim",
    bwd_returns="(Tensor, Tensor)",
    fake=_fake,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    function=_function,
    vmap=operator.vmap_over_rows(validate, along=True),
)
SELECTOR = contract.implementations(CONTRACT, None, _eager)
