"""A convolution, a bias, the residual stream and ReLU."""

from fuseline.ops.conv_add_relu.op import conv_add_relu

__all__ = ["conv_add_relu"]
