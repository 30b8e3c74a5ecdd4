"""Layer norm over the last dimension in float8_e4m3fn, by scales made of the result."""

from fuseline.ops.layer_norm_fp8_dynamic.op import layer_norm_fp8_dynamic

__all__ = ["layer_norm_fp8_dynamic"]
