"""The softmax of scaled and masked rows, or its logarithm."""

from fuseline.ops.masked_softmax.op import masked_softmax

__all__ = ["masked_softmax"]
