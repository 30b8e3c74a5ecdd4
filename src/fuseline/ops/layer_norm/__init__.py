"""Layer norm over the last dimension."""

from fuseline.ops.layer_norm.op import layer_norm

__all__ = ["layer_norm"]
