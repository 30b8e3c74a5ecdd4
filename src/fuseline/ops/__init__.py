"""The operators, one folder each."""

from fuseline.ops.add_rms_norm import add_rms_norm
from fuseline.ops.bias_dropout_add import bias_dropout_add
from fuseline.ops.norm_chain import norm_chain
from fuseline.ops.rms_norm import rms_norm
from fuseline.ops.rms_norm_fp8 import rms_norm_fp8

__all__ = ["add_rms_norm", "bias_dropout_add", "norm_chain", "rms_norm", "rms_norm_fp8"]
