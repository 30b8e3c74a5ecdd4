"""The softmax of the softmax."""

from fuseline.ops.double_softmax.op import double_softmax

__all__ = ["double_softmax"]
