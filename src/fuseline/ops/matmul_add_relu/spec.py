"""The row of matmul_add_relu: how to try it, what it must cost, and what it is compared with."""

from fuseline.core.products import cases
from fuseline.ops.matmul_add_relu import impl_eager, reference
from fuseline.ops.matmul_add_relu.op import PRODUCT, SELECTOR, matmul_add_relu

SPEC = cases.spec(
    PRODUCT,
    "y = max(a @ b + bias, 0)",
    matmul_add_relu,
    SELECTOR,
    impl_eager.matmul_add_relu,
    reference.matmul_add_relu,
)
