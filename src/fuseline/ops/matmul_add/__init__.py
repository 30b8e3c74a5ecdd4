"""A product and a bias."""

from fuseline.ops.matmul_add.op import matmul_add

__all__ = ["matmul_add"]
