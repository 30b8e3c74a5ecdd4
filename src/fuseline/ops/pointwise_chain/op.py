"""The contract of pointwise_chain: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.registration import contract, operator
from fuseline.ops.pointwise_chain import impl_eager
from fuseline.primitives.triton import Wrap

_NAME = "pointwise_chain"


def pointwise_chain(x: Tensor, impl: str = "auto") -> Tensor:
    """Return max(x * cos(x), cos(x)) + x * cos(x): cos, mul, max and add in one pass.

    y = max(x * c, c) + x * c, where c = cos(x).

    x     any shape, float64, float32, float16 or bfloat16; any layout. One copy is made if it has
          gaps or repeated elements; by "cuda" only if those transpose 2^18 elements or more, or lie
          in more than four dimensions that do not merge.
    impl  "auto", or one of "cuda", "cpu", "triton", "eager" (the plain formula, which rounds four
          times).

    Returns y with x's shape and dtype, rounded once; computed in float32 (float64: float64). It has
    x's memory layout, as torch.empty_like(x) has; so has the gradient. Where x * c equals c, at
    x = 1 alone, the gradient of max goes to each by half, as in torch. Saved for backward: x.
    Deterministic, gradients included.
    Raises TypeError (dtype), ValueError (impl) or RuntimeError (an implementation that cannot run
    here) before anything is launched.
    Source: the pointwise chain of "Unit Test for Fusion".
    """
    y: Tensor = operator.call(SELECTOR, validate, pointwise_chain, impl, x)
    return y


def validate(x: Tensor) -> None:
    """Refuse what no implementation takes."""
    arguments.require_tensor(_NAME, x)


def _sizes(x: Tensor) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {"y": (x.shape, x.dtype)}


def decomposed(x: Tensor) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return impl_eager.pointwise_chain(wide).to(x.dtype)


_SAVING = operator.SavingInput(_NAME, validate, _sizes, decomposed, keeps=True)
CONTRACT = _SAVING.contract()

_triton = contract.triton_beside(__name__)


def _triton_run(x: Tensor, wrap: Wrap | None = None) -> Tensor:
    validate(x)
    y: Tensor = _triton().fwd(x, wrap=wrap)
    return y


def _triton_bwd(dy: Tensor, x: Tensor, wrap: Wrap | None = None) -> Tensor:
    _SAVING.validate_bwd(dy, x)
    dx: Tensor = _triton().bwd(dy, x, wrap=wrap)
    return dx


def _eager(x: Tensor) -> Tensor:
    validate(x)
    return impl_eager.pointwise_chain(x)


_TRITON = contract.Kernels(run=_triton_run, bwd=_triton_bwd)
SELECTOR = contract.implementations(CONTRACT, _TRITON, _eager)
