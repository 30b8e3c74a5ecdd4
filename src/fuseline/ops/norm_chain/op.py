"""The contract of norm_chain: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.inputs.layout import as_rows, flat
from fuseline.core.registration import contract, operator
from fuseline.ops.norm_chain import impl_eager
from fuseline.primitives.triton import Wrap

_NAME = "norm_chain"


def norm_chain(x: Tensor, impl: str = "auto") -> Tensor:
    """Multiply x by its sum over the last dimension, three times.

    x *= sum(x, -1), three times; which is y = x * sum(x, -1)^7, since each sum is linear in x.

    x     (..., N), float64, float32, float16 or bfloat16; any layout. One copy at most, none if the
          last stride is 1 and the leading dimensions collapse to one row stride.
    impl  "auto", or one of "cuda", "cpu", "triton", "eager" (the plain formula, which rounds six
          times).

    Returns y, contiguous, with x's shape and dtype, rounded once. The sum is in float64 (float64:
    with what its additions lose; half types: blocks of it in float32). Saved for backward: x and
    the sum. Deterministic, gradients included.
    Raises TypeError (dtype), ValueError (shape, impl) or RuntimeError (an implementation that
    cannot run here) before anything is launched.
    Source: the norm chain of "Unit Test for Fusion", whose x has two dimensions.
    """
    y: Tensor = operator.call(SELECTOR, validate, norm_chain, impl, x)
    return y


def validate(x: Tensor) -> None:
    """Refuse what no implementation takes."""
    arguments.require_rows(_NAME, x)


def _sizes(x: Tensor) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {"y": (x.shape, x.dtype), "sum": (x.shape[:-1], torch.float64)}


def decomposed(x: Tensor) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x)
    h = x.to(torch.float64)
    for _ in range(3):  # the power of one sum gives infinities where these steps give NaN
        h = h * h.sum(-1, keepdim=True)
    return h.to(x.dtype)


_SAVING = operator.SavingInput(_NAME, validate, _sizes, decomposed, saved=("sum",))
CONTRACT = _SAVING.contract()

_triton = contract.triton_beside(__name__)


def _triton_run(x: Tensor, wrap: Wrap | None = None) -> Tensor:
    validate(x)
    y: Tensor = _triton().fwd(as_rows(x), save_sum=False, wrap=wrap)[0]
    return y.view(x.shape)


def _triton_fwd(x: Tensor, wrap: Wrap | None = None) -> tuple[Tensor, Tensor]:
    validate(x)
    y, total = _triton().fwd(as_rows(x), save_sum=True, wrap=wrap)
    return y.view(x.shape), total.view(x.shape[:-1])


def _triton_bwd(dy: Tensor, x: Tensor, sum: Tensor, wrap: Wrap | None = None) -> Tensor:
    _SAVING.validate_bwd(dy, x, sum)
    dx: Tensor = _triton().bwd(as_rows(dy), as_rows(x), flat(sum), wrap=wrap)
    return dx.view(x.shape)


def _eager(x: Tensor) -> Tensor:
    validate(x)
    return impl_eager.norm_chain(x).contiguous()


_TRITON = contract.Kernels(run=_triton_run, fwd=_triton_fwd, bwd=_triton_bwd)
SELECTOR = contract.implementations(CONTRACT, _TRITON, _eager)
