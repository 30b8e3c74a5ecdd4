"""The cross-entropy of a linear layer's logits, which are made by chunks of rows."""

from fuseline.ops.linear_cross_entropy.op import linear_cross_entropy

__all__ = ["linear_cross_entropy"]
