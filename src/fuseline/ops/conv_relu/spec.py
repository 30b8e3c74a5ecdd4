"""The row of conv_relu: how to try it, what it must cost, and what it is compared with."""

from fuseline.core.convolutions import cases
from fuseline.ops.conv_relu import impl_eager, reference
from fuseline.ops.conv_relu.op import CONVOLUTION, SELECTOR, conv_relu

SPEC = cases.spec(
    CONVOLUTION,
    "y = max(conv(x, weight) + bias, 0)",
    conv_relu,
    SELECTOR,
    impl_eager.conv_relu,
    reference.conv_relu,
)
