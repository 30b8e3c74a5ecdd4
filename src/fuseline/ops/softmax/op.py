"""The softmax's contract: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from torch import Tensor

from fuseline.core import arguments, contract, operator
from fuseline.ops.softmax import impl_eager
from fuseline.primitives import softmax as formulas

_NAME = "softmax"
# What enable() puts these kernels in the place of, where dim is the last.
ATEN = {
    "_softmax": "aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor",
    "_softmax_backward_data": (
        "aten::_softmax_backward_data(Tensor grad_output, Tensor output, int dim, "
        "ScalarType input_dtype) -> Tensor"
    ),
}


def softmax(x: Tensor, dim: int = -1, impl: str = "auto") -> Tensor:
    """Softmax over one dimension.

    y = exp(x - max(x)) / sum(exp(x - max(x)))

    x     float64, float32, float16 or bfloat16, at least one dimension; any layout. One copy is
          made unless the last stride is 1 and the leading dimensions collapse to one row stride.
    dim   any but the last is moved to the end and back: most often a copy of x and one of y.
    impl  "auto", or one of "cuda", "cpu", "eager" (torch's own).

    Returns y, contiguous, with x's shape and dtype, computed in float32 (float64 for float64) and
    rounded once. A row with a NaN, with +Inf or of -Inf alone is all NaN, as in torch. Saved for
    backward: y. Deterministic, gradients included.
    Raises TypeError (dtype, dim), ValueError (shape, dim, impl) or RuntimeError (an implementation
    that cannot run here) before anything is launched.
    Source: torch.softmax.
    """
    if dim == -1:
        y: Tensor = operator.call(SELECTOR, validate, softmax, impl, x)
        return y
    return operator.call_along(dim, SELECTOR, validate, softmax, impl, x)


def validate(x: Tensor) -> None:
    """Refuses what no implementation takes."""
    arguments.require_rows(_NAME, x)


def decomposed(x: Tensor) -> Tensor:
    """The operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x)
    return formulas.softmax(x)


def _eager(x: Tensor) -> Tensor:
    validate(x)
    return impl_eager.softmax(x).contiguous()


CONTRACT = operator.saving_output(_NAME, validate, decomposed, formulas.gradient)
SELECTOR = contract.implementations(CONTRACT, None, _eager)
