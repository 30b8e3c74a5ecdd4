"""The operators, one folder each."""

from fuseline.ops.add_rms_norm import add_rms_norm
from fuseline.ops.rms_norm import rms_norm

__all__ = ["add_rms_norm", "rms_norm"]
