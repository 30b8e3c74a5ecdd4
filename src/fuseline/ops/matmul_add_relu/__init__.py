"""A product, a bias and ReLU."""

from fuseline.ops.matmul_add_relu.op import matmul_add_relu

__all__ = ["matmul_add_relu"]
