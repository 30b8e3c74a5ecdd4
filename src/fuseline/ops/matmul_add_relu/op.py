"""The contract of matmul_add_relu, and the public function."""

from __future__ import annotations

from torch import Tensor

from fuseline.core.products import serve
from fuseline.core.products.product import Product
from fuseline.core.registration import contract
from fuseline.ops.matmul_add_relu import impl_eager


def matmul_add_relu(a: Tensor, b: Tensor, bias: Tensor, impl: str = "auto") -> Tensor:
    """Return the ReLU of a @ b + bias.

    y = max(a @ b + bias, 0)

    a     (..., M, K), float64, float32, float16 or bfloat16; any layout.
          A copy is made only if neither rows nor columns are contiguous.
    b     (K, N), or (..., K, N) with the leading dimensions of a; of a's dtype, as a else.
    bias  (N,), of a's dtype.
    impl  "auto", or one of "cublaslt", "triton" (CUDA) and "onednn" (CPU), which fuse what
          follows, "aten" (torch's operators), "eager" (the formula).

    Returns y, (..., M, N), contiguous, of a's dtype. Half types are multiplied and added in float32
    and rounded once (by "aten" also before the activation); float32 in TF32 only where
    torch.backends.cuda.matmul.fp32_precision allows it. Under autocast a, b and bias are cast as
    torch's products cast them. Saved for backward: a, b and y.
    Raises TypeError (dtype), ValueError (shape, device, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: torch.matmul.
    """
    return serve.call(PRODUCT, SELECTOR, matmul_add_relu, impl, a, b, bias)


PRODUCT = Product("matmul_add_relu", activation="relu", biased=True)
SELECTOR = serve.register(PRODUCT, impl_eager.matmul_add_relu, contract.triton_beside(__name__))
