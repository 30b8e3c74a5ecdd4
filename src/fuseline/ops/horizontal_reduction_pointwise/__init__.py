"""Sum over dimension 1 and cosine, from one read."""

from fuseline.ops.horizontal_reduction_pointwise.op import horizontal_reduction_pointwise

__all__ = ["horizontal_reduction_pointwise"]
