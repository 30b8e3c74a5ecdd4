"""Scaled dot-product attention, by the library that serves a call best or by kernels of ours."""

from fuseline.ops.attention.op import attention

__all__ = ["attention"]
