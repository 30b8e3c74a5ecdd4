"""The row of matmul_matmul: how to try it, what it must cost, and what it is compared with."""

from fuseline.core.products import chain_cases
from fuseline.ops.matmul_matmul import impl_eager, reference
from fuseline.ops.matmul_matmul.op import CHAIN, SELECTOR, matmul_matmul

SPEC = chain_cases.spec(
    CHAIN,
    "y = activation(x @ w1) @ w2",
    matmul_matmul,
    SELECTOR,
    impl_eager.matmul_matmul,
    reference.matmul_matmul,
)
