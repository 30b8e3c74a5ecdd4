"""The row of conv_add: how to try it, what it must cost, and what it is compared with."""

from fuseline.core.convolutions import cases
from fuseline.ops.conv_add import impl_eager, reference
from fuseline.ops.conv_add.op import CONVOLUTION, SELECTOR, conv_add

SPEC = cases.spec(
    CONVOLUTION,
    "y = conv(x, weight) + bias",
    conv_add,
    SELECTOR,
    impl_eager.conv_add,
    reference.conv_add,
)
