"""A product and ReLU."""

from fuseline.ops.matmul_relu.op import matmul_relu

__all__ = ["matmul_relu"]
