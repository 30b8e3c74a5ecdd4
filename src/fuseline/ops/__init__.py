"""The operators, one folder each."""

from fuseline.ops.rms_norm import rms_norm

__all__ = ["rms_norm"]
