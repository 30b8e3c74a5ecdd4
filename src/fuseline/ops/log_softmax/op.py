"""The contract of log_softmax: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from fuseline.core.inputs import arguments
from fuseline.core.registration import contract, operator
from fuseline.ops.log_softmax import impl_eager
from fuseline.ops.masked_softmax.op import masked_softmax
from fuseline.primitives import softmax as formulas

_NAME = "log_softmax"
# What enable() puts these kernels in the place of.
ATEN = {
    "_log_softmax": "aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor",
    "_log_softmax_backward_data": (
        "aten::_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, "
        "ScalarType input_dtype) -> Tensor"
    ),
}


def log_softmax(
    x: Tensor,
    dim: int = -1,
    impl: str = "auto",
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float = 1.0,
) -> Tensor:
    """Return the logarithm of the softmax over one dimension.

    y = x - max(x) - log(sum(exp(x - max(x))))

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
    Source: torch.log_softmax.
    """
    # isinstance alone takes 0.1 us, through Tensor's metaclass.
    scaled = (type(scale) is not float and isinstance(scale, Tensor)) or scale != 1.0
    if mask is not None or causal is not False or scaled:
        if operator.has_proxy(x, mask):
            options: Any = {"mask": mask, "causal": causal, "scale": scale}
            return handle_torch_function(log_softmax, (x, mask), x, dim, impl, **options)  # type: ignore[no-any-return]
        arguments.require_last(_NAME, dim, x, "a mask, causal or a scale")
        return masked_softmax(x, mask, causal, scale, True, impl)
    y: Tensor = operator.call(SELECTOR, validate, log_softmax, impl, x, dim)
    return y


def validate(x: Tensor, dim: int) -> None:
    """Refuse what no implementation takes."""
    arguments.require_along(_NAME, dim, x)


def decomposed(x: Tensor, dim: int) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x, dim)
    return formulas.log_softmax(x, dim)


def _eager(x: Tensor, dim: int) -> Tensor:
    validate(x, dim)
    return impl_eager.log_softmax(x, dim).contiguous()


def _not_by_aten(direction: str, x: Tensor, dim: int) -> str | None:
    """Return why torch's kernels do not serve a call, or None."""
    if direction == "bwd" or x.dtype != torch.float16 or not x.is_cpu:
        return None
    if x.shape[dim] <= torch.finfo(torch.float16).max:
        return None
    return f"its sum over {x.shape[dim]} elements in torch.float16 may overflow"


CONTRACT = operator.saving_output(_NAME, validate, decomposed, formulas.log_gradient)
_ATEN = operator.aten_along(ATEN, validate, _not_by_aten)
SELECTOR = contract.implementations(CONTRACT, None, _eager, _ATEN)
