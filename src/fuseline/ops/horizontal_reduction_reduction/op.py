"""The contract of horizontal_reduction_reduction: schemas, gradients, the public function."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.registration import contract, operator
from fuseline.ops.horizontal_reduction_reduction import impl_eager

_NAME = "horizontal_reduction_reduction"
Pair = tuple[Tensor, Tensor]


def horizontal_reduction_reduction(x: Tensor, impl: str = "auto") -> Pair:
    """Return the sum and the largest element over the last dimension, from one read of x.

    sum = sum(x, -1), amax = max(x, -1).

    x     (..., N) with N > 0, float64, float32, float16 or bfloat16; any layout. One copy is
          made, on a GPU forward only, of one with gaps or repeated elements, unless its last stride
          is 1 and the leading dimensions collapse to one row stride.
    impl  "auto", or one of "cuda", "cpu", "eager" (the two operations).

    Returns (sum, amax), contiguous, of x's dtype and x's shape without its last dimension. The sum
    is rounded once, from float64 (float64: with what its additions lose; half types may take blocks
    of it in float32). The gradient of amax is shared evenly by all elements that are as large, as
    in torch; that of x has x's memory layout, as torch.empty_like(x) has. Saved for backward: x,
    amax and the number of these. Deterministic, gradients included.
    Raises TypeError (dtype), ValueError (shape, impl) or RuntimeError (an implementation that
    cannot run here) before anything is launched.
    Source: the horizontal fusion of sum and amax in "Unit Test for Fusion", whose x has two
    dimensions.
    """
    outputs: Pair = operator.call(SELECTOR, validate, horizontal_reduction_reduction, impl, x)
    return outputs


def validate(x: Tensor) -> None:
    """Refuse what no implementation takes."""
    arguments.require_rows(_NAME, x)
    if x.shape[-1] == 0:
        raise ValueError(
            f"{_NAME}: x has shape {tuple(x.shape)}, expected at least one column to be the largest"
        )


def _sizes(x: Tensor) -> dict[str, tuple[torch.Size, torch.dtype]]:
    rows = x.shape[:-1]
    return {"sum": (rows, x.dtype), "amax": (rows, x.dtype), "count": (rows, torch.float64)}


def decomposed(x: Tensor) -> Pair:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x)
    # Widened, so that the two gradients of x are added before they are rounded.
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.sum(wide, -1).to(x.dtype), torch.amax(wide, -1).to(x.dtype)


_SAVING = operator.SavingInput(
    _NAME,
    validate,
    _sizes,
    decomposed,
    outputs=("sum", "amax"),
    saved=("amax", "count"),
    keeps=True,
)
CONTRACT = _SAVING.contract()


def _eager(x: Tensor) -> Pair:
    validate(x)
    return impl_eager.horizontal_reduction_reduction(x)


SELECTOR = contract.implementations(CONTRACT, None, _eager)
