"""RMSNorm over the last dimension, quantised to float8_e4m3fn."""

from fuseline.ops.rms_norm_fp8.op import rms_norm_fp8

__all__ = ["rms_norm_fp8"]
