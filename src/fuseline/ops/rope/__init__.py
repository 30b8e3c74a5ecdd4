"""Rotary position embedding of queries and keys."""

from fuseline.ops.rope.op import rope

__all__ = ["rope"]
