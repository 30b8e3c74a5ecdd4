"""Two products with an activation between."""

from fuseline.ops.mlp.op import mlp

__all__ = ["mlp"]
