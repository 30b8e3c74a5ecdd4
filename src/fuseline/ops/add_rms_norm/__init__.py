"""A residual addition and RMSNorm of the sum, in one pass."""

from fuseline.ops.add_rms_norm.op import add_rms_norm

__all__ = ["add_rms_norm"]
