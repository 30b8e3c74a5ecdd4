"""The contract of matmul_add_gelu, and the public function."""

from __future__ import annotations

from torch import Tensor

from fuseline.core.products import serve
from fuseline.core.products.product import Product
from fuseline.core.registration import contract
from fuseline.ops.matmul_add_gelu import impl_eager


def matmul_add_gelu(
    a: Tensor, b: Tensor, bias: Tensor, approximate: str = "tanh", impl: str = "auto"
) -> Tensor:
    """Return the GELU of a @ b + bias.

    With h = a @ b + bias, y = h * Phi(h), the normal distribution, for "none"; for "tanh"
    y = h / 2 * (1 + tanh(sqrt(2 / pi) * (h + 0.044715 * h^3))).

    a            (..., M, K), float64, float32, float16 or bfloat16; any layout.
                 A copy is made only if neither rows nor columns are contiguous.
    b            (K, N), or (..., K, N) with the leading dimensions of a; of a's dtype, as a else.
    bias         (N,), of a's dtype.
    approximate  "tanh" or "none", as in torch.nn.functional.gelu.
    impl         "auto", or one of "cublaslt", "triton" (CUDA) and "onednn" (CPU), which fuse what
                 follows, "aten" (torch's operators), "eager" (the formula).

    Returns y, (..., M, N), contiguous, of a's dtype. Half types are multiplied and added in float32
    and rounded once (by "aten" also before the activation); float32 in TF32 only where
    torch.backends.cuda.matmul.fp32_precision allows it. Under autocast a, b and bias are cast as
    torch's products cast them. Saved for backward: a, b and h.
    Raises TypeError (dtype), ValueError (shape, device, approximate, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: torch.matmul.
    """
    return serve.call(PRODUCT, SELECTOR, matmul_add_gelu, impl, a, b, bias, approximate)


PRODUCT = Product("matmul_add_gelu", activation="gelu", biased=True)
SELECTOR = serve.register(PRODUCT, impl_eager.matmul_add_gelu, contract.triton_beside(__name__))
