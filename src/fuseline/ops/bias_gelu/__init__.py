"""GELU of x + bias."""

from fuseline.ops.bias_gelu.op import bias_gelu

__all__ = ["bias_gelu"]
