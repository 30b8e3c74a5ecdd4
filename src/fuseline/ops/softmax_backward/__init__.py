"""The gradient of the softmax, from that of its output and the output."""

from fuseline.ops.softmax_backward.op import softmax_backward

__all__ = ["softmax_backward"]
