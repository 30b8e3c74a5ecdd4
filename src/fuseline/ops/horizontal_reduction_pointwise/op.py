"""The contract of horizontal_reduction_pointwise: schemas, gradients, the public function."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.registration import contract, operator
from fuseline.ops.horizontal_reduction_pointwise import impl_eager

_NAME = "horizontal_reduction_pointwise"
Pair = tuple[Tensor, Tensor]


def horizontal_reduction_pointwise(x: Tensor, impl: str = "auto") -> Pair:
    """Return the sum over the last dimension and the cosine, from one read of x.

    sum = sum(x, -1), cos = cos(x).

    x     (..., N), float64, float32, float16 or bfloat16; any layout. One copy is made, on a GPU
          forward only, of one with gaps or repeated elements, unless its last stride is 1 and the
          leading dimensions collapse to one row stride.
    impl  "auto", or one of "cuda", "cpu", "eager" (the two operations).

    Returns (sum, cos) of x's dtype, rounded once; sum has x's shape without its last dimension and
    is contiguous, cos has x's shape and its memory layout, as torch.empty_like(x) has; so has the
    gradient. The sum is in float64 (float64: with what its additions lose; half types
    may take blocks of it in float32). Saved for backward: x. Deterministic, gradients included.
    Raises TypeError (dtype), ValueError (shape, impl) or RuntimeError (an implementation that
    cannot run here) before anything is launched.
    Source: the horizontal fusion of sum and cos in "Unit Test for Fusion", whose x has two
    dimensions.
    """
    outputs: Pair = operator.call(SELECTOR, validate, horizontal_reduction_pointwise, impl, x)
    return outputs


def validate(x: Tensor) -> None:
    """Refuse what no implementation takes."""
    arguments.require_rows(_NAME, x)


def _sizes(x: Tensor) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {"sum": (x.shape[:-1], x.dtype), "cos": (x.shape, x.dtype)}


def decomposed(x: Tensor) -> Pair:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x)
    # Widened, so that the two gradients of x are added before they are rounded.
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.sum(wide, -1).to(x.dtype), torch.cos(wide).to(x.dtype)


_SAVING = operator.SavingInput(
    _NAME, validate, _sizes, decomposed, outputs=("sum", "cos"), keeps=True
)
CONTRACT = _SAVING.contract()


def _eager(x: Tensor) -> Pair:
    validate(x)
    return impl_eager.horizontal_reduction_pointwise(x)


SELECTOR = contract.implementations(CONTRACT, None, _eager)
