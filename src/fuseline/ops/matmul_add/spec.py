"""The row of matmul_add: how to try it, what it must cost, and what it is compared with."""

from fuseline.core.products import cases
from fuseline.ops.matmul_add import impl_eager, reference
from fuseline.ops.matmul_add.op import PRODUCT, SELECTOR, matmul_add

SPEC = cases.spec(
    PRODUCT,
    "y = a @ b + bias",
    matmul_add,
    SELECTOR,
    impl_eager.matmul_add,
    reference.matmul_add,
)
