"""The contract of swiglu: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import silu

from fuseline.core.gated import Gated
from fuseline.core.registration import contract, operator
from fuseline.ops.swiglu import impl_eager

_NAME = "swiglu"


def swiglu(a: Tensor, b: Tensor | None = None, impl: str = "auto") -> Tensor:
    """Return silu(a) * b, the gate of a SwiGLU layer.

    y = a / (1 + e^-a) * b.

    a     any shape, float64, float32, float16 or bfloat16; any layout. With b: the argument of
          silu. Without: (..., 2 * N), both in one, [a | b], whose halves are read where they are.
    b     as a: its shape, dtype and device; any layout; or None.
    impl  "auto", or one of "cuda", "cpu", "eager" (the plain formula, which rounds twice).

    Returns y with a's dtype, computed in float32 (float64: float64) and rounded once: with b in the
    shape and the memory layout of a, as torch.empty_like(a) has it, and so have both gradients;
    without b contiguous, (..., N), its gradient as torch.empty_like(a). What lies otherwise than a
    is copied by "cpu", by "cuda" only if that transposes 2^18 elements or more, or if it lies in
    more than four dimensions that do not merge.
    Saved for backward: a and b; both gradients come of one pass. Deterministic.
    Raises TypeError (dtype), ValueError (shape, device, impl) or RuntimeError (an implementation
    that cannot run here) before anything is launched.
    Source: GLU Variants Improve Transformer, Shazeer, 2020 (arXiv:2002.05202).
    """
    y: Tensor = operator.call(SELECTOR, _GATED.validate, swiglu, impl, a, b)
    return y


_GATED = Gated(_NAME, silu)
CONTRACT = _GATED.contract()


def _eager(a: Tensor, b: Tensor | None) -> Tensor:
    _GATED.validate(a, b)
    return impl_eager.swiglu(a, b)


SELECTOR = contract.implementations(CONTRACT, None, _eager)
