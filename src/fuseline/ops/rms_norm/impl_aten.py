"""Torch's own RMSNorm kernels, forward and backward, on what our forward saves."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fuseline.core.registration import aten, contract

Pair = tuple[Tensor, Tensor]


def unsupported(
    direction: str, x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0
) -> str | None:
    """Return why they do not serve a call, or None."""
    if x.numel() == 0:
        return "x is empty"
    if weight_offset != 0.0:
        return f"weight_offset is {weight_offset}, expected 0"
    if weight is not None and weight.dtype != x.dtype:
        return f"weight has dtype {weight.dtype}, expected {x.dtype} (as x)"
    return aten.lost(x, eps) if direction == "fwd" else None


def provider(schemas: Mapping[str, str]) -> contract.Provider:
    """Return the implementation by these operators of torch."""
    forward, backward = aten.bind(schemas)

    def fwd(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Pair:
        y, rstd = forward(x, x.shape[-1:], weight, eps)
        return y.contiguous(), rstd.view(x.shape[:-1])

    def run(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
        return fwd(x, weight, eps)[0]

    def bwd(
        dy: Tensor,
        x: Tensor,
        weight: Tensor | None,
        rstd: Tensor,
        need_dx: bool,
        need_dweight: bool,
        weight_offset: float = 0.0,
    ) -> Pair:
        needs = (need_dx, need_dweight and weight is not None)
        saved = rstd.contiguous().unsqueeze(-1)  # read one after the other, wherever they lie
        grads = backward(dy, x, x.shape[-1:], saved, weight, needs)
        dx, dweight = (
            grad if need else x.new_empty((0,)) for grad, need in zip(grads, needs, strict=True)
        )
        return dx.contiguous(), dweight

    return aten.provider(contract.Kernels(run, fwd, bwd), (forward, backward), unsupported)
