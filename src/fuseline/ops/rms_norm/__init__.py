"""RMSNorm over the last dimension."""

from fuseline.ops.rms_norm.op import rms_norm

__all__ = ["rms_norm"]
