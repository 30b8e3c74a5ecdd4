"""The contract of conv_relu, and the public function."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fuseline.core.convolutions import providers
from fuseline.core.convolutions.convolution import Convolution
from fuseline.core.registration import contract
from fuseline.ops.conv_relu import impl_eager


def conv_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    impl: str = "auto",
) -> Tensor:
    """Return the ReLU of a convolution of x.

    y = max(conv(x, weight) + bias, 0)

    x, weight, stride, padding, dilation, groups
          as fuseline.conv_add has them; float64, float32, float16 or bfloat16.
    bias  (K,), of x's dtype; None: 0.
    impl  "auto", or one of "cudnn" (on a GPU: one kernel for all), "triton" (on a GPU, of
          channels_last: torch's convolution, then bias and ReLU in its place), "aten" (torch's
          kernels), "eager" (the formula). The gradient through ReLU and that of the bias are one
          pass of "triton", which "cudnn" has too.

    Returns y, (N, K, P, Q), of x's dtype; channels_last if x or the weight is, else contiguous.
    Precision and autocast are those of conv_add. Saved for backward: x, weight and y.
    Raises TypeError (dtype), ValueError (shape, device, numbers, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: conv+relu of "Unit Test for Fusion".
    """
    args = (x, weight, bias, stride, padding, dilation, groups)
    y: Tensor = CONVOLUTION.run(SELECTOR, conv_relu, impl, *args)
    return y


CONVOLUTION = Convolution("conv_relu", optional=True, relu=True)
SELECTOR = providers.register(CONVOLUTION, impl_eager.conv_relu, contract.triton_beside(__name__))
