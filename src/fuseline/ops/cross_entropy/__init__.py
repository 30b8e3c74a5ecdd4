"""The cross-entropy of logits and indices of classes."""

from fuseline.ops.cross_entropy.op import cross_entropy

__all__ = ["cross_entropy"]
