"""The contract of rms_norm_fp8_dynamic and its public function; it has no gradient."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from fuseline.core.norms_fp8 import NormFp8
from fuseline.core.registration import contract, operator
from fuseline.ops.rms_norm_fp8_dynamic import impl_eager
from fuseline.primitives import fp8, rms

_NAME = "rms_norm_fp8_dynamic"


def rms_norm_fp8_dynamic(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    block: int | None = None,
    scale_ub: float | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return the root-mean-square norm in float8_e4m3fn, and the scales, made of the result.

    v = x * rsqrt(mean(x^2) + eps) * weight; amax = max(|v|) of each row, or of each block of it
    scale = max(min(amax, scale_ub) / 448, 2^-126), y = v / scale

    x         (..., N), float32, float16 or bfloat16; any layout. One copy at most, none if the last
              stride is 1 and the leading dimensions collapse to one row stride.
    weight    (N,), of x's dtype or float32; None: 1.
    eps       not negative; None: torch.finfo(x.dtype).eps.
    block     None: one scale a row. Else so many neighbours of a row have one, the last of which
              may be fewer; a power of two from 16 to 1024, 128 for DeepSeek's products.
    scale_ub  positive: the most that amax counts, as in vLLM; what is larger saturates. None: none.
    impl      "auto", or one of "cpu", "triton", "eager" (the plain formula: where squares leave the
              range of float32 it gives 0 or NaN).

    Returns (y, scale), contiguous: y in float8_e4m3fn, with x's shape; scale in float32, (..., 1)
    or (..., ceil(N / block)): y * scale is v. v and the division (not a multiplication by an
    inverse) are float32, and y is rounded once to the nearest even; v is not rounded to x's dtype.
    A block of zeros has the least scale, so y is 0; where v is NaN, so are its block's scale and y.
    Forward only.
    Raises TypeError (dtype), ValueError (shape, device, eps, block, scale_ub, impl) or RuntimeError
    (an implementation that cannot run here, an input that requires grad) before anything is
    launched.
    Source: rms_norm_dynamic_per_token_quant and rms_norm_per_block_quant of vLLM.
    """
    eps, scale_ub = _NORM.numbers((x, weight), eps, scale_ub)
    args = (x, weight, eps, block, scale_ub)
    pair: tuple[Tensor, Tensor] = operator.call(
        SELECTOR, _NORM.validate, rms_norm_fp8_dynamic, impl, *args
    )
    return pair


_NORM = NormFp8(_NAME, partial(fp8.by_blocks, rms.normalised))
CONTRACT = _NORM.contract()
SELECTOR = contract.implementations(
    CONTRACT,
    _NORM.triton(contract.triton_beside(__name__)),
    _NORM.eager(impl_eager.rms_norm_fp8_dynamic),
)
