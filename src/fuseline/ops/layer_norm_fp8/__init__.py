"""Layer norm over the last dimension, quantised to float8_e4m3fn."""

from fuseline.ops.layer_norm_fp8.op import layer_norm_fp8

__all__ = ["layer_norm_fp8"]
