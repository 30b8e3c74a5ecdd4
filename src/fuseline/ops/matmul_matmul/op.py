"""The contract of matmul_matmul, and the public function."""

from __future__ import annotations

from torch import Tensor

from fuseline.core.products import serve
from fuseline.core.products.chain import Chain
from fuseline.core.registration import contract
from fuseline.ops.matmul_matmul import impl_eager


def matmul_matmul(
    x: Tensor, w1: Tensor, w2: Tensor, activation: str | None = None, impl: str = "auto"
) -> Tensor:
    """Return two products, with ReLU between or nothing.

    y = activation(x @ w1) @ w2. With nothing between, x @ (w1 @ w2) where that takes fewer
    operations: K * P * (N + rows) < rows * N * (K + P).

    x           (..., K), two dimensions or more, float64, float32, float16 or bfloat16; any layout.
    w1, w2      (K, N) and (N, P), of x's dtype.
    activation  None or "relu".
    impl        "auto", or one of "cublaslt", "triton" (CUDA) and "onednn" (CPU), which fuse what
                follows a product, "aten" (torch's operators), "eager" (the formula, x @ w1 first).

    Returns y, (..., P), contiguous, of x's dtype; the middle, or w1 @ w2, is rounded to it, so that
    results of half types, and whether Inf gives Inf or NaN, depend on which comes first: on the
    shapes alone. float32 is multiplied in TF32 only where
    torch.backends.cuda.matmul.fp32_precision allows it. Under autocast all tensors are cast as
    torch's products cast theirs. Saved for backward: x, the weights, and the middle or w1 @ w2.
    Raises TypeError (dtype), ValueError (shape, device, activation, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: torch.linalg.multi_dot.
    """
    return serve.call(CHAIN, SELECTOR, matmul_matmul, impl, x, w1, w2, activation)


CHAIN = Chain("matmul_matmul", biased=False, activations=(None, "relu"))
SELECTOR = serve.register(CHAIN, impl_eager.matmul_matmul, contract.triton_beside(__name__))
