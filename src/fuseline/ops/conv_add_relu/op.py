"""The contract of conv_add_relu, and the public function."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fuseline.core.convolutions import providers
from fuseline.core.convolutions.convolution import Convolution
from fuseline.core.registration import contract
from fuseline.ops.conv_add_relu import impl_eager


def conv_add_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    impl: str = "auto",
) -> Tensor:
    """Return the ReLU of a convolution of x and the residual stream.

    y = max(conv(x, weight) + bias + z, 0)

    x, weight, stride, padding, dilation, groups
          as fuseline.conv_add has them; float64, float32, float16 or bfloat16.
    bias  (K,), of x's dtype; None: 0.
    z     (N, K, P, Q), y's shape and dtype; any layout.
    impl  "auto", or one of "cudnn" (on a GPU: one kernel for all), "triton" (on a GPU, of
          channels_last: torch's convolution, then the rest in its place), "onednn" (on a CPU, of
          channels_last: the sum in its kernel), "aten" (torch's kernels), "eager" (the formula).
          Gradients are those of conv_relu's.

    Returns y, (N, K, P, Q), of x's dtype; channels_last if x or the weight is, else contiguous.
    Precision and autocast are those of conv_add; where autocast would cast z, which is none of the
    convolution's, torch's formula is computed, in z's dtype. Saved for backward: x, weight and y,
    from which the gradient of z comes in y's layout.
    Raises TypeError (dtype), ValueError (shape, device, numbers, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: conv+add and conv+relu of "Unit Test for Fusion".
    """
    args = (x, weight, bias, z, stride, padding, dilation, groups)
    y: Tensor = CONVOLUTION.run(SELECTOR, conv_add_relu, impl, *args)
    return y


CONVOLUTION = Convolution("conv_add_relu", optional=True, adds=True, relu=True)
SELECTOR = providers.register(
    CONVOLUTION, impl_eager.conv_add_relu, contract.triton_beside(__name__)
)
