"""The contract of layer_norm_fp8 and its public function; it has no gradient."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from fuseline.core.norms_fp8 import NormFp8
from fuseline.core.registration import contract, operator
from fuseline.ops.layer_norm_fp8 import impl_eager
from fuseline.primitives import fp8, rms

_NAME = "layer_norm_fp8"


def layer_norm_fp8(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor,
    eps: float = 1e-5,
    impl: str = "auto",
) -> Tensor:
    """Return the layer norm over the last dimension, quantised to float8_e4m3fn.

    y = v / scale, v = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias,
    var(x) = mean((x - mean(x))^2)

    x       (..., N), float32, float16 or bfloat16; any layout. One copy at most, none if the last
            stride is 1 and the leading dimensions collapse to one row stride.
    weight  (N,), of x's dtype or float32; None: 1.
    bias    as weight, whatever that is; None: 0.
    scale   float32, one element, such as () or (1,), on x's device; what the reader of y
            multiplies by.
    eps     not negative.
    impl    "auto", or one of "cpu", "triton", "eager" (the plain formula).

    Returns y, contiguous, of x's shape and dtype float8_e4m3fn: v and the division (not a
    multiplication by 1 / scale) in float32, rounded once to the nearest even. What is larger than
    448, Inf included, is 448; NaN stays NaN. Forward only.
    Raises TypeError (dtype), ValueError (shape, device, eps, impl) or RuntimeError (an
    implementation that cannot run here, an input that requires grad) before anything is launched.
    Source: Ba, Kiros and Hinton, Layer Normalization, 2016.
    """
    eps, _ = _NORM.numbers((x, weight, bias, scale), eps)
    args = (x, weight, bias, scale, eps)
    y: Tensor = operator.call(SELECTOR, _NORM.validate, layer_norm_fp8, impl, *args)
    return y


_NORM = NormFp8(
    _NAME,
    partial(fp8.by_scale, rms.layer_normalised),
    parameters=("weight", "bias"),
    dynamic=False,
)
CONTRACT = _NORM.contract()
SELECTOR = contract.implementations(
    CONTRACT,
    _NORM.triton(contract.triton_beside(__name__)),
    _NORM.eager(impl_eager.layer_norm_fp8),
)
