"""Two products, with ReLU between or nothing."""

from fuseline.ops.matmul_matmul.op import matmul_matmul

__all__ = ["matmul_matmul"]
