"""The row of matmul_relu: how to try it, what it must cost, and what it is compared with."""

from fuseline.core.products import cases
from fuseline.ops.matmul_relu import impl_eager, reference
from fuseline.ops.matmul_relu.op import PRODUCT, SELECTOR, matmul_relu

SPEC = cases.spec(
    PRODUCT,
    "y = max(a @ b, 0)",
    matmul_relu,
    SELECTOR,
    impl_eager.matmul_relu,
    reference.matmul_relu,
)
