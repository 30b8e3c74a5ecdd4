"""A bias added, dropout, and a residual added, in any memory layout."""

from fuseline.ops.bias_dropout_add.op import bias_dropout_add, tile_for

__all__ = ["bias_dropout_add", "tile_for"]
