"""The contract of softmax_backward: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fuseline.core import arguments, contract, operator
from fuseline.ops.softmax_backward import impl_eager
from fuseline.primitives import softmax as formulas
from fuseline.primitives.rms import statistics_dtype

_NAME = "softmax_backward"
Gradients = tuple[Tensor | None, Tensor | None, None]


def softmax_backward(dy: Tensor, y: Tensor, dim: int = -1, impl: str = "auto") -> Tensor:
    """Gradient of the softmax's input over one dimension.

    dx = y * (dy - sum(dy * y))

    dy    the gradient of y; float64, float32, float16 or bfloat16, at least one dimension; any
          layout. One copy is made unless the last stride is 1 and the dimensions before dim, and
          those after it, each collapse to one stride.
    y     what the softmax returned, of dy's shape and dtype; any layout, as dy.
    dim   any; nothing is moved to the end for it.
    impl  "auto", or one of "cuda", "cpu", "eager" (the plain formula, which rounds four times).

    Returns dx, contiguous, with dy's shape and dtype, computed in float32 (float64 for float64) and
    rounded once. Its own gradients are those of the formula; saved for them: dy and y.
    Deterministic.
    Raises TypeError (dtype, dim), ValueError (shape, device, dim, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: torch.ops.aten._softmax_backward_data.
    """
    dx: Tensor = operator.call(SELECTOR, validate, softmax_backward, impl, dy, y, dim)
    return dx


def validate(dy: Tensor, y: Tensor, dim: int) -> None:
    """Refuses what no implementation takes."""
    arguments.require_along(_NAME, dim, dy, "dy")
    arguments.require_twin(_NAME, "y", y, dy, "dy")


def _fake(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    validate(dy, y, dim)
    return dy.new_empty(dy.shape)


def decomposed(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """The operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(dy, y, dim)
    return formulas.gradient(dy, y, dim)


def _gradients(needs: Sequence[bool], g: Tensor, dy: Tensor, y: Tensor, dim: int) -> Gradients:
    """Those of the formula, the first of which is the formula again."""
    of_dy = softmax_backward(g, y, dim) if needs[0] else None
    if not needs[1]:
        return of_dy, None, None
    dtype = statistics_dtype(y)
    g, dy, p = g.to(dtype), dy.to(dtype), y.to(dtype)
    dy_p, g_p = ((t * p).sum(dim, keepdim=True) for t in (dy, g))
    return of_dy, (g * (dy - dy_p)).addcmul_(dy, g_p, value=-1).to(y.dtype), None


def _eager(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    validate(dy, y, dim)
    return impl_eager.softmax_backward(dy, y, dim).contiguous()


CONTRACT = contract.Contract(
    name=_NAME,
    args="Tensor dy, Tensor y, int dim",
    fake=_fake,
    decomposed=decomposed,
    vmap=operator.vmap_over_rows(validate, along=True),
    gradients=_gradients,
)
SELECTOR = contract.implementations(CONTRACT, None, _eager)
