"""A layer of self-attention: the projections, attention, and the projection of its result."""

from fuseline.ops.multihead_attention.op import multihead_attention

__all__ = ["multihead_attention"]
