"""The contract of layer_norm_fp8_dynamic and its public function; it has no gradient."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from fuseline.core.norms_fp8 import NormFp8
from fuseline.core.registration import contract, operator
from fuseline.ops.layer_norm_fp8_dynamic import impl_eager
from fuseline.primitives import fp8, rms

_NAME = "layer_norm_fp8_dynamic"


def layer_norm_fp8_dynamic(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    block: int | None = None,
    scale_ub: float | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return the layer norm in float8_e4m3fn, and the scales, made of the result.

    v = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias, var(x) = mean((x - mean(x))^2)
    scale = max(min(amax(|v|), scale_ub) / 448, 2^-126) of each row or block, y = v / scale

    x         (..., N), float32, float16 or bfloat16; any layout. One copy at most, none if the last
              stride is 1 and the leading dimensions collapse to one row stride.
    weight    (N,), of x's dtype or float32; None: 1.
    bias      as weight, whatever that is; None: 0.
    eps       not negative.
    block     None: one scale a row. Else so many neighbours of a row have one, the last of which
              may be fewer; a power of two from 16 to 1024.
    scale_ub  positive: the most that amax counts; what is larger saturates. None: none.
    impl      "auto", or one of "cpu", "triton", "eager" (the plain formula).

    Returns (y, scale), contiguous: y in float8_e4m3fn, with x's shape; scale in float32, (..., 1)
    or (..., ceil(N / block)): y * scale is v. v and the division are float32, and y is rounded once
    to the nearest even. A block of zeros has the least scale, so y is 0; where v is NaN, so are its
    block's scale and y. Forward only.
    Raises TypeError (dtype), ValueError (shape, device, eps, block, scale_ub, impl) or RuntimeError
    (an implementation that cannot run here, an input that requires grad) before anything is
    launched.
    Source: Ba, Kiros and Hinton, Layer Normalization, 2016.
    """
    eps, scale_ub = _NORM.numbers((x, weight, bias), eps, scale_ub)
    args = (x, weight, bias, eps, block, scale_ub)
    pair: tuple[Tensor, Tensor] = operator.call(
        SELECTOR, _NORM.validate, layer_norm_fp8_dynamic, impl, *args
    )
    return pair


_NORM = NormFp8(_NAME, partial(fp8.by_blocks, rms.layer_normalised), parameters=("weight", "bias"))
CONTRACT = _NORM.contract()
SELECTOR = contract.implementations(
    CONTRACT,
    _NORM.triton(contract.triton_beside(__name__)),
    _NORM.eager(impl_eager.layer_norm_fp8_dynamic),
)
