"""What all products do in Triton."""

from fuseline.primitives.triton.products.activation import act_grad
from fuseline.primitives.triton.products.product import product

__all__ = ["act_grad", "product"]
