"""Torch's own layer norm kernels, forward and backward, on what our forward saves."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fuseline.core.registration import aten, contract

Three = tuple[Tensor, Tensor, Tensor]


def unsupported(
    direction: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> str | None:
    """Return why they do not serve a call, or None."""
    if x.numel() == 0:
        return "x is empty"
    half = x.dtype in (torch.float16, torch.bfloat16)
    given = {n: p.dtype for n, p in (("weight", weight), ("bias", bias)) if p is not None}
    if x.device.type == "cpu" and half:
        # Theirs are of x's dtype unless the parameters are wider.
        if not given or set(given.values()) != {torch.float32}:
            return f"mean and rstd of {x.dtype}, expected float32, but for float32 parameters"
    else:
        for name, dtype in given.items():
            if dtype != x.dtype:
                return f"{name} has dtype {dtype}, expected {x.dtype} (as x)"
    if direction == "bwd" and half and bias is not None and weight is None:
        return f"the gradient of a bias without a weight of {x.dtype}, expected float32"
    return aten.lost(x, eps) if direction == "fwd" else None


def provider(schemas: Mapping[str, str]) -> contract.Provider:
    """Return the implementation by these operators of torch."""
    forward, backward = aten.bind(schemas)

    def fwd(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Three:
        y, *saved = forward(x, x.shape[-1:], weight, bias, eps)
        mean, rstd = (t.view(x.shape[:-1]) for t in saved)
        return y.contiguous(), mean, rstd

    def run(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        return fwd(x, weight, bias, eps)[0]

    def bwd(
        dy: Tensor,
        x: Tensor,
        weight: Tensor | None,
        mean: Tensor,
        rstd: Tensor,
        need_dx: bool,
        need_dweight: bool,
        need_dbias: bool,
    ) -> Three:
        # Its kernels read them one after the other, wherever they lie.
        saved = (mean.contiguous().unsqueeze(-1), rstd.contiguous().unsqueeze(-1))
        # Of the bias it reads the dtype and the shape, which the gradient has.
        like_bias = weight if weight is not None else rstd.new_empty(x.shape[-1:])
        needs = (need_dx, need_dweight and weight is not None, need_dbias)
        grads = backward(dy, x, x.shape[-1:], *saved, weight, like_bias, needs)
        dx, dweight, dbias = (
            grad if need else x.new_empty((0,)) for grad, need in zip(grads, needs, strict=True)
        )
        return dx.contiguous(), dweight, dbias

    return aten.provider(contract.Kernels(run, fwd, bwd), (forward, backward), unsupported)
