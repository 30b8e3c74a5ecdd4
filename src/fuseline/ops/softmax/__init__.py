"""The softmax over one dimension."""

from fuseline.ops.softmax.op import softmax

__all__ = ["softmax"]
