"""GEGLU: gelu(a) * b."""

from fuseline.ops.geglu.op import geglu

__all__ = ["geglu"]
