"""The contract of softmax_backward: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fuseline.core import arguments, contract, operator
from fuseline.ops.softmax_backward import impl_eager
from fuseline.primitives import softmax as formulas
from fuseline.primitives.rms import statistics_dtype

_NAME = "softmax_backward"
Gradients = tuple[Tensor | None, Tensor | None]


def softmax_backward(dy: Tensor, y: Tensor, dim: int = -1, impl: str = "auto") -> Tensor:
    """Gradient of the softmax's input over one dimension.

    dx = y * (dy - sum(dy * y))

    dy    the gradient of y; float64, float32, float16 or bfloat16, at least one dimension; any
          layout. One copy is made unless the last stride is 1 and the leading dimensions collapse
          to one row stride.
    y     what the softmax returned, of dy's shape and dtype; any layout, as dy.
    dim   any but the last is moved to the end and back: most often a copy of each input and of dx.
    impl  "auto", or one of "cuda", "cpu", "eager" (the plain formula, which rounds four times).

    Returns dx, contiguous, with dy's shape and dtype, computed in float32 (float64 for float64) and
    rounded once. Its own gradients are those of the formula; saved for them: dy and y.
    Deterministic.
    Raises TypeError (dtype, dim), ValueError (shape, device, dim, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: torch.ops.aten._softmax_backward_data.
    """
    if dim == -1:
        dx: Tensor = operator.call(SELECTOR, validate, softmax_backward, impl, dy, y)
        return dx
    return operator.call_along(dim, SELECTOR, validate, softmax_backward, impl, dy, y)


def validate(dy: Tensor, y: Tensor) -> None:
    """Refuses what no implementation takes."""
    arguments.require_rows(_NAME, dy, "dy")
    arguments.require_twin(_NAME, "y", y, dy, "dy")


def _fake(dy: Tensor, y: Tensor) -> Tensor:
    validate(dy, y)
    return dy.new_empty(dy.shape)


def decomposed(dy: Tensor, y: Tensor) -> Tensor:
    """The operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(dy, y)
    return formulas.gradient(dy, y)


def _gradients(needs: Sequence[bool], g: Tensor, dy: Tensor, y: Tensor) -> Gradients:
    """Those of the formula, the first of which is the formula again."""
    of_dy = softmax_backward(g, y) if needs[0] else None
    if not needs[1]:
        return of_dy, None
    dtype = statistics_dtype(y)
    g, dy, p = g.to(dtype), dy.to(dtype), y.to(dtype)
    dy_p, g_p = ((t * p).sum(-1, keepdim=True) for t in (dy, g))
    return of_dy, (g * (dy - dy_p)).addcmul_(dy, g_p, value=-1).to(y.dtype)


def _eager(dy: Tensor, y: Tensor) -> Tensor:
    validate(dy, y)
    return impl_eager.softmax_backward(dy, y).contiguous()


CONTRACT = contract.Contract(
    name=_NAME,
    args="Tensor dy, Tensor y",
    fake=_fake,
    decomposed=decomposed,
    vmap=operator.vmap_over_rows(validate),
    gradients=_gradients,
)
SELECTOR = contract.implementations(CONTRACT, None, _eager)
