"""A product, a bias and GELU."""

from fuseline.ops.matmul_add_gelu.op import matmul_add_gelu

__all__ = ["matmul_add_gelu"]
