"""A chain of four pointwise steps: cos, mul, max, add."""

from fuseline.ops.pointwise_chain.op import pointwise_chain

__all__ = ["pointwise_chain"]
