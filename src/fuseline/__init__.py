"""Fused PyTorch operators at the speed of the memory."""

from fuseline import nn
from fuseline.ops import rms_norm

__version__ = "0.1.0"
__all__ = ["nn", "rms_norm"]
