"""The row of conv_add_relu: how to try it, what it must cost, and what it is compared with."""

from fuseline.core.convolutions import cases
from fuseline.ops.conv_add_relu import impl_eager, reference
from fuseline.ops.conv_add_relu.op import CONVOLUTION, SELECTOR, conv_add_relu

SPEC = cases.spec(
    CONVOLUTION,
    "y = max(conv(x, weight) + bias + z, 0)",
    conv_add_relu,
    SELECTOR,
    impl_eager.conv_add_relu,
    reference.conv_add_relu,
)
