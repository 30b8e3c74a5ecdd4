"""A convolution and a bias."""

from fuseline.ops.conv_add.op import conv_add

__all__ = ["conv_add"]
