"""The contract of geglu: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from fuseline.core.gated import Gated
from fuseline.core.registration import contract, operator
from fuseline.ops.geglu import impl_eager
from fuseline.primitives.gelu import gelu, require_approximate

_NAME = "geglu"


def geglu(
    a: Tensor, b: Tensor | None = None, approximate: str = "tanh", impl: str = "auto"
) -> Tensor:
    """Return gelu(a) * b, the gate of a GEGLU layer.

    y = a * Phi(a) * b, the normal distribution, for "none"; for "tanh"
    y = a / 2 * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 * a^3))) * b.

    a            any shape, float64, float32, float16 or bfloat16; any layout. With b: the argument
                 of gelu. Without: (..., 2 * N), both in one, [a | b], whose halves are read where
                 they are.
    b            as a: its shape, dtype and device; any layout; or None.
    approximate  "tanh" or "none", as in torch.nn.functional.gelu.
    impl         "auto", or one of "cuda", "cpu", "eager" (the plain formula, which rounds twice and
                 has no digits left where the result is small).

    Returns y with a's dtype, computed in float32 (float64: float64) and rounded once: with b in the
    shape and the memory layout of a, as torch.empty_like(a) has it, and so have both gradients;
    without b contiguous, (..., N), its gradient as torch.empty_like(a). What lies otherwise than a
    is copied by "cpu", by "cuda" only if that transposes 2^18 elements or more, or if it lies in
    more than four dimensions that do not merge.
    Saved for backward: a and b; both gradients come of one pass. Deterministic.
    Raises TypeError (dtype), ValueError (shape, device, approximate, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: GLU Variants Improve Transformer, Shazeer, 2020 (arXiv:2002.05202).
    """
    y: Tensor = operator.call(SELECTOR, _GATED.validate, geglu, impl, a, b, approximate)
    return y


_GATED = Gated(_NAME, gelu, ", str approximate", partial(require_approximate, _NAME))
CONTRACT = _GATED.contract()


def _eager(a: Tensor, b: Tensor | None, approximate: str) -> Tensor:
    _GATED.validate(a, b, approximate)
    return impl_eager.geglu(a, b, approximate)


SELECTOR = contract.implementations(CONTRACT, None, _eager)
