"""The row of mlp: how to try it, what it must cost, and what it is compared with."""

from fuseline.core.products import chain_cases
from fuseline.ops.mlp import impl_eager, reference
from fuseline.ops.mlp.op import CHAIN, SELECTOR, mlp

SPEC = chain_cases.spec(
    CHAIN,
    "y = activation(x @ w1 + b1) @ w2 + b2",
    mlp,
    SELECTOR,
    impl_eager.mlp,
    reference.mlp,
)
