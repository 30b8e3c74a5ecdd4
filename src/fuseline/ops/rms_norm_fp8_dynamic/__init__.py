"""RMSNorm over the last dimension in float8_e4m3fn, by scales made of the result."""

from fuseline.ops.rms_norm_fp8_dynamic.op import rms_norm_fp8_dynamic

__all__ = ["rms_norm_fp8_dynamic"]
