"""The contract of double_softmax: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.registration import contract, operator
from fuseline.ops.double_softmax import impl_eager
from fuseline.primitives.rms import statistics_dtype

_NAME = "double_softmax"


def double_softmax(x: Tensor, dim: int = 1, impl: str = "auto") -> Tensor:
    """Return the softmax of the softmax over one dimension, reading x once.

    p = exp(x - max(x)) / sum(exp(x - max(x))), y = exp(p - max(p)) / sum(exp(p - max(p)));
    max(p) is exp(0) / sum(exp(x - max(x))).

    x     float64, float32, float16 or bfloat16; any layout. One copy at most, none if the last
          stride is 1 and the dimensions before dim, and those after it, each collapse to one
          stride.
    dim   any; nothing is moved to the end for it.
    impl  "auto", or one of "cuda", "cpu", "eager" (torch.softmax twice, which rounds twice).

    Returns y, contiguous, with x's shape and dtype, computed in float32 (float64 for float64) and
    rounded once. A row with a NaN, with +Inf or of -Inf alone is all NaN, as in torch. Saved for
    backward: x and three numbers a row (max(x) and the two sums' inverses). Deterministic,
    gradients included.
    Raises TypeError (dtype, dim), ValueError (shape, dim, impl) or RuntimeError (an implementation
    that cannot run here) before anything is launched.
    Source: the double softmax of "Unit Test for Fusion", whose x has two dimensions.
    """
    y: Tensor = operator.call(SELECTOR, validate, double_softmax, impl, x, dim)
    return y


def validate(x: Tensor, dim: int) -> None:
    """Refuse what no implementation takes."""
    arguments.require_along(_NAME, dim, x)


def _sizes(x: Tensor, dim: int) -> dict[str, tuple[torch.Size, torch.dtype]]:
    dim %= x.dim()
    stats = torch.Size((*x.shape[:dim], *x.shape[dim + 1 :], 3)), statistics_dtype(x)
    return {"y": (x.shape, x.dtype), "stats": stats}


def decomposed(x: Tensor, dim: int) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x, dim)
    p = torch.softmax(x, dim, dtype=statistics_dtype(x))
    return torch.softmax(p, dim).to(x.dtype)


def _eager(x: Tensor, dim: int) -> Tensor:
    validate(x, dim)
    return impl_eager.double_softmax(x, dim).contiguous()


CONTRACT = operator.SavingInput(
    _NAME, validate, _sizes, decomposed, saved=("stats",), along=True
).contract()
SELECTOR = contract.implementations(CONTRACT, None, _eager)
