"""A convolution, batch normalisation and, maybe, ReLU."""

from fuseline.ops.conv_bn.op import conv_bn

__all__ = ["conv_bn"]
