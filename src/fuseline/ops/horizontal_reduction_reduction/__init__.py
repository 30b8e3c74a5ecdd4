"""Sum and largest element over dimension 1, from one read."""

from fuseline.ops.horizontal_reduction_reduction.op import horizontal_reduction_reduction

__all__ = ["horizontal_reduction_reduction"]
