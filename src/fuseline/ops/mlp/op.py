"""The contract of mlp, and the public function."""

from __future__ import annotations

from torch import Tensor

from fuseline.core.products import serve
from fuseline.core.products.chain import Chain
from fuseline.core.registration import contract
from fuseline.ops.mlp import impl_eager


def mlp(
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    activation: str = "gelu",
    impl: str = "auto",
) -> Tensor:
    """Return two products with an activation between.

    y = activation(x @ w1 + b1) @ w2 + b2

    x           (..., K), two dimensions or more, float64, float32, float16 or bfloat16; any layout.
    w1, b1      (K, N) and (N,), of x's dtype.
    w2, b2      (N, P) and (P,), of x's dtype.
    activation  "gelu" (the formula by tanh, as matmul_add_gelu's), "gelu_none" (by erf), "relu".
    impl        "auto", or one of "cublaslt", "triton" (CUDA) and "onednn" (CPU), which fuse what
                follows a product, "aten" (torch's operators), "eager" (the formula).

    Returns y, (..., P), contiguous, of x's dtype; the middle is rounded to it. Half types are
    multiplied and added in float32; float32 in TF32 only where
    torch.backends.cuda.matmul.fp32_precision allows it. Under autocast all tensors are cast as
    torch's products cast theirs. Saved for backward: x, the weights and biases, the middle, and
    what GELU was of.
    Raises TypeError (dtype), ValueError (shape, device, activation, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: the feed-forward layer of Attention Is All You Need, 2017 (arXiv:1706.03762).
    """
    return serve.call(CHAIN, SELECTOR, mlp, impl, x, w1, b1, w2, b2, activation)


CHAIN = Chain("mlp", biased=True, activations=("gelu", "gelu_none", "relu"))
SELECTOR = serve.register(CHAIN, impl_eager.mlp, contract.triton_beside(__name__))
