"""Attention of sequences of several lengths, packed one after the other."""

from fuseline.ops.attention_varlen.op import attention_varlen

__all__ = ["attention_varlen"]
