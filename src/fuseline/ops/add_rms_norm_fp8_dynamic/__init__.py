"""The residual addition and RMSNorm in float8_e4m3fn, by scales made of the result."""

from fuseline.ops.add_rms_norm_fp8_dynamic.op import add_rms_norm_fp8_dynamic

__all__ = ["add_rms_norm_fp8_dynamic"]
