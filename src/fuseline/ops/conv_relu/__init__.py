"""A convolution, a bias and ReLU."""

from fuseline.ops.conv_relu.op import conv_relu

__all__ = ["conv_relu"]
