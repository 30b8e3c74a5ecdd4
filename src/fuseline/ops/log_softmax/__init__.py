"""The logarithm of the softmax over one dimension."""

from fuseline.ops.log_softmax.op import log_softmax

__all__ = ["log_softmax"]
