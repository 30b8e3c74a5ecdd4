"""The contract of conv_add, and the public function."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fuseline.core.convolutions import providers
from fuseline.core.convolutions.convolution import Convolution
from fuseline.core.registration import contract
from fuseline.ops.conv_add import impl_eager


def conv_add(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    impl: str = "auto",
) -> Tensor:
    """Return the convolution of x with a bias.

    y = conv(x, weight) + bias

    x       (N, C, H, W), or one or three spatial dimensions; float64, float32, float16 or bfloat16;
            any layout. N may be 0.
    weight  (K, C / groups, R, S), of x's dtype; any layout.
    bias    (K,), of x's dtype.
    stride, padding, dilation
            a number, or one for each spatial dimension; the padding of both ends is the same.
    groups  a divisor of C and K.
    impl    "auto", or one of "triton" (on a GPU, of channels_last: torch's convolution, the bias
            and its gradient in a pass each), "aten" (torch's kernels), "eager" (the formula).

    Returns y, (N, K, P, Q), of x's dtype; channels_last if x or the weight is, else contiguous. On
    a GPU float32 is multiplied in TF32 where torch.backends.cudnn.conv.fp32_precision allows it.
    Under autocast arguments are cast as torch's convolution casts them. Saved for backward: x and
    weight. Deterministic where torch.use_deterministic_algorithms asks for that.
    Raises TypeError (dtype), ValueError (shape, device, numbers, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: conv+add of "Unit Test for Fusion".
    """
    args = (x, weight, bias, stride, padding, dilation, groups)
    y: Tensor = CONVOLUTION.run(SELECTOR, conv_add, impl, *args)
    return y


CONVOLUTION = Convolution("conv_add")
SELECTOR = providers.register(CONVOLUTION, impl_eager.conv_add, contract.triton_beside(__name__))
