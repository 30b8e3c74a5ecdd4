"""Three sums over rows, each multiplied into its row."""

from fuseline.ops.norm_chain.op import norm_chain

__all__ = ["norm_chain"]
