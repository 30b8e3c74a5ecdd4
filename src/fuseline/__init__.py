"""Fused PyTorch operators at the speed of the memory."""

from fuseline import nn
from fuseline.ops import add_rms_norm, rms_norm
from fuseline.patching import patch, unpatch
from fuseline.takeover import disable, enable, enabled, status

__version__ = "0.1.0"
__all__ = [
    "add_rms_norm",
    "disable",
    "enable",
    "enabled",
    "nn",
    "patch",
    "rms_norm",
    "status",
    "unpatch",
]
