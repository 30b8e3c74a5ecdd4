"""The contract of add_rms_norm_fp8_dynamic and its public function; it has no gradient."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from fuseline.core.norms_fp8 import NormFp8
from fuseline.core.registration import contract, operator
from fuseline.ops.add_rms_norm_fp8_dynamic import impl_eager
from fuseline.primitives import fp8, rms

_NAME = "add_rms_norm_fp8_dynamic"


def add_rms_norm_fp8_dynamic(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    block: int | None = None,
    scale_ub: float | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Add x to the residual stream and return the norm of the sum in float8_e4m3fn, in one pass.

    new_residual = x + residual, rounded to their dtype
    v = new_residual * rsqrt(mean(new_residual^2) + eps) * weight
    scale = max(min(amax(|v|), scale_ub) / 448, 2^-126) of each row or block, y = v / scale

    x         (..., N), float32, float16 or bfloat16; any layout. One copy at most, none if the last
              stride is 1 and the leading dimensions collapse to one row stride.
    residual  as x: its shape, dtype and device; any layout. It is not written to.
    weight    (N,), of x's dtype or float32; None: 1.
    eps       not negative; None: torch.finfo(x.dtype).eps.
    block     None: one scale a row. Else so many neighbours of a row have one, the last of which
              may be fewer; a power of two from 16 to 1024.
    scale_ub  positive: the most that amax counts; what is larger saturates. None: none.
    impl      "auto", or one of "cpu", "triton", "eager" (the plain formula: where squares leave the
              range of float32 it gives 0 or NaN).

    Returns (y, scale, new_residual), contiguous: y and scale are those of
    `rms_norm_fp8_dynamic(new_residual, ...)`, new_residual has x's shape and dtype. Forward only.
    Raises TypeError (dtype), ValueError (shape, device, eps, block, scale_ub, impl) or RuntimeError
    (an implementation that cannot run here, an input that requires grad) before anything is
    launched.
    Source: rms_norm_dynamic_per_token_quant of vLLM, which normalises the sum before it is rounded.
    """
    eps, scale_ub = _NORM.numbers((x, residual, weight), eps, scale_ub)
    args = (x, residual, weight, eps, block, scale_ub)
    three: tuple[Tensor, Tensor, Tensor] = operator.call(
        SELECTOR, _NORM.validate, add_rms_norm_fp8_dynamic, impl, *args
    )
    return three


_NORM = NormFp8(_NAME, partial(fp8.by_blocks, rms.normalised), rows=("x", "residual"))
CONTRACT = _NORM.contract()
SELECTOR = contract.implementations(
    CONTRACT,
    _NORM.triton(contract.triton_beside(__name__)),
    _NORM.eager(impl_eager.add_rms_norm_fp8_dynamic),
)
