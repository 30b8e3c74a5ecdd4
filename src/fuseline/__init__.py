"""Fused PyTorch operators at the speed of the memory."""

from fuseline import nn
from fuseline.ops import add_rms_norm, bias_dropout_add, norm_chain, rms_norm, rms_norm_fp8
from fuseline.patching import patch, unpatch
from fuseline.takeover import disable, enable, enabled, status

__version__ = "0.1.0"
__all__ = [
    "add_rms_norm",
    "bias_dropout_add",
    "disable",
    "enable",
    "enabled",
    "nn",
    "norm_chain",
    "patch",
    "rms_norm",
    "rms_norm_fp8",
    "status",
    "unpatch",
]
