"""The softmax's contract: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import handle_torch_function

from fuseline.core.inputs import arguments
from fuseline.core.registration import contract, operator
from fuseline.ops.masked_softmax.op import masked_softmax
from fuseline.ops.softmax import impl_eager
from fuseline.primitives import softmax as formulas

_NAME = "softmax"
# What enable() puts these kernels in the place of.
ATEN = {
    "_softmax": "aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor",
    "_softmax_backward_data": (
        "aten::_softmax_backward_data(Tensor grad_output, Tensor output, int dim, "
        "ScalarType input_dtype) -> Tensor"
    ),
}


def softmax(
    x: Tensor,
    dim: int = -1,
    impl: str = "auto",
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float = 1.0,
) -> Tensor:
    """Return the softmax over one dimension.

    y = exp(x - max(x)) / sum(exp(x - max(x)))

    x     float64, float32, float16 or bfloat16, at least one dimension; any layout. One copy at
          most, none if the last stride is 1 and the dimensions before dim, and those after it, each
          collapse to one stride.
    dim   any; nothing is moved to the end for it.
    impl  "auto", or one of "cuda", "cpu", "aten" (torch's own kernels, forward and backward),
          "eager" (torch's own function).
    mask, causal, scale
          of scale * x + mask, over the last dimension alone: fuseline.masked_softmax, where they
          are described. It has "triton" too.

    Returns y, contiguous, with x's shape and dtype, computed in float32 (float64 for float64) and
    rounded once. A row with a NaN, with +Inf or of -Inf alone is all NaN, as in torch. Saved for
    backward: y. Deterministic, gradients included.
    Raises TypeError (dtype, dim), ValueError (shape, dim, impl) or RuntimeError (an implementation
    that cannot run here) before anything is launched.
    Source: torch.softmax.
    """
    # isinstance alone takes 0.1 us, through Tensor's metaclass.
    scaled = (type(scale) is not float and isinstance(scale, Tensor)) or scale != 1.0
    if mask is not None or causal is not False or scaled:
        if operator.has_proxy(x, mask):
            options: Any = {"mask": mask, "causal": causal, "scale": scale}
            return handle_torch_function(softmax, (x, mask), x, dim, impl, **options)  # type: ignore[no-any-return]
        arguments.require_last(_NAME, dim, x, "a mask, causal or a scale")
        return masked_softmax(x, mask, causal, scale, False, impl)
    y: Tensor = operator.call(SELECTOR, validate, softmax, impl, x, dim)
    return y


def validate(x: Tensor, dim: int) -> None:
    """Refuse what no implementation takes."""
    arguments.require_along(_NAME, dim, x)


def decomposed(x: Tensor, dim: int) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x, dim)
    return formulas.softmax(x, dim)


def _eager(x: Tensor, dim: int) -> Tensor:
    validate(x, dim)
    return impl_eager.softmax(x, dim).contiguous()


CONTRACT = operator.saving_output(_NAME, validate, decomposed, formulas.gradient)
_ATEN = operator.aten_along(ATEN, validate)
SELECTOR = contract.implementations(CONTRACT, None, _eager, _ATEN)
