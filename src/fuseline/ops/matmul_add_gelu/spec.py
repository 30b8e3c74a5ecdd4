"""The row of matmul_add_gelu: how to try it, what it must cost, and what it is compared with."""

from fuseline.core.products import cases
from fuseline.ops.matmul_add_gelu import impl_eager, reference
from fuseline.ops.matmul_add_gelu.op import PRODUCT, SELECTOR, matmul_add_gelu

SPEC = cases.spec(
    PRODUCT,
    "y = gelu(a @ b + bias)",
    matmul_add_gelu,
    SELECTOR,
    impl_eager.matmul_add_gelu,
    reference.matmul_add_gelu,
)
