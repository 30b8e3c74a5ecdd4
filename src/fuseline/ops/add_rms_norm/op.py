"""The contract of add_rms_norm: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import (
    move_batch_dim_to_front,
    move_weight_batch_to_front,
    unbatched,
)
from fuseline.core.inputs.layout import as_rows, dense
from fuseline.core.registration import contract, operator
from fuseline.ops.add_rms_norm import impl_eager
from fuseline.primitives.rms import normalised, statistics_dtype
from fuseline.primitives.triton import Wrap

_NAME = "add_rms_norm"
_EPS = arguments.EPS
Pair = tuple[Tensor, Tensor]


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Add x to the residual stream and normalise the sum over its last dimension, in one pass.

    new_residual = x + residual, rounded to their dtype
    y = new_residual * rsqrt(mean(new_residual^2) + eps) * weight

    x         (..., N), float64, float32, float16 or bfloat16; any layout. One copy at most, none if
              the last stride is 1 and the leading dimensions collapse to one row stride.
    residual  as x: its shape, dtype and device; any layout.
    weight    (N,), of x's dtype or float32; None: 1.
    eps       not negative; None: torch.finfo(x.dtype).eps.
    impl      "auto", or one of "cuda", "cpu", "triton", "eager" (the plain formula: where squares
              leave the range of float32 it gives 0 or Inf).

    Returns (y, new_residual), contiguous, with x's shape and dtype. y is the norm of new_residual
    as it was rounded, computed in float32 (float64 for float64) and rounded once. The gradients of
    x and residual are equal: the norm's plus that of new_residual, added before the one rounding.
    Saved for backward: new_residual, weight, rstd. Deterministic, gradients included.
    Raises TypeError (dtype), ValueError (shape, device, eps, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    """
    if is_compiling():
        x, residual, weight, _ = operator.admitted(validate, x, residual, weight, eps)
        eps = arguments.require_eps(_NAME, eps, x)
        traced: Pair = SELECTOR.traced(impl, x.device.type)(x, residual, weight, eps)
        return traced
    try:
        if eps is None:
            eps = _EPS[x.dtype]
        elif type(eps) is not float or not eps >= 0.0:
            eps = arguments.require_eps(_NAME, eps, x)
        # Two attributes cost a fifth of `x.device.type`.
        device_type = "cuda" if x.is_cuda else "cpu" if x.is_cpu else x.device.type
        outputs: Pair = SELECTOR.calls[impl, device_type](x, residual, weight, eps)
    except Exception:
        refuse = partial(validate, x, residual, weight, eps)
        args = (x, residual, weight, eps, impl)
        outputs = operator.retry(add_rms_norm, refuse, add_rms_norm, args)
    return outputs


def validate(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float | None) -> float:
    """Refuse what no implementation takes, naming the argument; return eps."""
    arguments.require_rows(_NAME, x)
    arguments.require_twin(_NAME, "residual", residual, x)
    arguments.require_weight(_NAME, weight, x)
    return arguments.require_eps(_NAME, eps, x)


def _validate_bwd(
    dy: Tensor, d_new_residual: Tensor | None, h: Tensor, weight: Tensor | None, rstd: Tensor
) -> None:
    arguments.require_rows(_NAME, h, "new_residual")
    arguments.require_weight(_NAME, weight, h, "new_residual")
    for name, t in (("dy", dy), ("d_new_residual", d_new_residual)):
        if t is not None:
            arguments.require_exactly(_NAME, name, t, h.shape, h.dtype, h.device)
    arguments.require_exactly(_NAME, "rstd", rstd, h.shape[:-1], statistics_dtype(h), h.device)


def _fake(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> Pair:
    validate(x, residual, weight, None)
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _fake_fwd(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    outputs = _fake(x, residual, weight, eps)
    return *outputs, x.new_empty(x.shape[:-1], dtype=statistics_dtype(x))


def _fake_bwd(
    dy: Tensor,
    d_new_residual: Tensor | None,
    new_residual: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    need_dx: bool,
    need_dweight: bool,
) -> Pair:
    _validate_bwd(dy, d_new_residual, new_residual, weight, rstd)
    dx = new_residual.new_empty(new_residual.shape if need_dx else (0,))
    if need_dweight and weight is not None:
        return dx, weight.new_empty(weight.shape)
    return dx, new_residual.new_empty((0,))


def decomposed(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> Pair:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x, residual, weight, None)
    return _of_sum(x + residual, weight, eps)


def _of_sum(h: Tensor, weight: Tensor | None, eps: float) -> Pair:
    """Return both outputs from the rounded sum, widened first:
    so their gradients add up unrounded.
    """
    wide = h.to(statistics_dtype(h))
    return normalised(wide, weight, eps).to(h.dtype), wide.to(h.dtype)


def _function(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> type[torch.autograd.Function]:
    class AddRMSNorm(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float
        ) -> Pair:
            y, new_residual, rstd = fwd(x, residual, weight, eps)
            ctx.save_for_backward(new_residual, weight, rstd)
            ctx.eps = eps
            ctx.set_materialize_grads(False)
            if not any(ctx.needs_input_grad[:2]):
                ctx.mark_non_differentiable(new_residual)
            return y, new_residual

        @staticmethod
        def backward(
            ctx: Any, dy: Tensor | None, d_new_residual: Tensor | None
        ) -> tuple[Tensor | None, ...]:
            h, weight, rstd = ctx.saved_tensors
            need_x, need_residual, need_dweight, _ = ctx.needs_input_grad
            need_dx = need_x or need_residual
            dx: Tensor | None
            dweight: Tensor | None
            if dy is None:
                dx, dweight = d_new_residual, None
            elif contract.wants_graph((dy, d_new_residual, h, weight)):
                # h remembers that this operator made it: what comes back for it goes on to x and
                # residual as one more gradient of new_residual.
                dx, dweight, _ = contract.differentiable_backward(
                    _of_sum,
                    (h, weight, ctx.eps),
                    (need_dx, need_dweight, False),
                    dy,
                    d_new_residual,
                )
            else:
                dx, dweight = bwd(dy, d_new_residual, h, weight, rstd, need_dx, need_dweight)
            # One tensor for two inputs, as torch's addition returns it: autograd sees that it has
            # two owners and copies it where it would be kept or added to. A view would hide that.
            return (
                dx if need_x else None,
                dx if need_residual else None,
                dweight if need_dweight else None,
                None,
            )

    return AddRMSNorm


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    def rule(
        info: Any, in_dims: Any, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float
    ) -> Any:
        x_dim, residual_dim, weight_dim, _ = in_dims
        if info.batch_size:
            one_weight = None if weight is None else unbatched(weight, weight_dim)
            validate(unbatched(x, x_dim), unbatched(residual, residual_dim), one_weight, None)
        x = move_batch_dim_to_front(x, x_dim, info.batch_size)
        residual = move_batch_dim_to_front(residual, residual_dim, info.batch_size)
        if weight is None or weight_dim is None:
            return op(x, residual, weight, eps), (0, 0)
        weight = move_weight_batch_to_front(weight, weight_dim, x.dim())
        return _of_sum(x + residual, weight, eps), (0, 0)

    return rule


CONTRACT = contract.Contract(
    name=_NAME,
    args="Tensor x, Tensor residual, Tensor? weight, float eps",
    returns="(Tensor, Tensor)",
    fwd_returns="(Tensor, Tensor, Tensor)",
    bwd_args=(
        "Tensor dy, Tensor? d_new_residual, Tensor new_residual, Tensor? weight, Tensor rstd, "
        "bool need_dx, bool need_dweight"
    ),
    bwd_returns="(Tensor, Tensor)",
    fake=_fake,
    fake_fwd=_fake_fwd,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    function=_function,
    vmap=_vmap,
    gradients=("x", "weight"),
)

_triton = contract.triton_beside(__name__)


def _triton_run(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    wrap: Wrap | None = None,
) -> Pair:
    validate(x, residual, weight, None)
    y, new_residual, _ = _triton().fwd(
        as_rows(x), as_rows(residual), dense(weight), eps, save_rstd=False, wrap=wrap
    )
    return y.view(x.shape), new_residual.view(x.shape)


def _triton_fwd(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    wrap: Wrap | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    validate(x, residual, weight, None)
    y, new_residual, rstd = _triton().fwd(
        as_rows(x), as_rows(residual), dense(weight), eps, save_rstd=True, wrap=wrap
    )
    return y.view(x.shape), new_residual.view(x.shape), rstd.view(x.shape[:-1])


def _triton_bwd(
    dy: Tensor,
    d_new_residual: Tensor | None,
    new_residual: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    need_dx: bool,
    need_dweight: bool,
    wrap: Wrap | None = None,
) -> Pair:
    _validate_bwd(dy, d_new_residual, new_residual, weight, rstd)
    dx, dweight = _triton().bwd(
        as_rows(dy),
        None if d_new_residual is None or not need_dx else as_rows(d_new_residual),
        as_rows(new_residual),
        dense(weight),
        rstd.reshape(-1),
        need_dx,
        need_dweight and weight is not None,
        wrap=wrap,
    )
    return (
        new_residual.new_empty((0,)) if dx is None else dx.view(new_residual.shape),
        new_residual.new_empty((0,)) if dweight is None else dweight,
    )


def _eager(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> Pair:
    validate(x, residual, weight, eps)
    y, new_residual = impl_eager.add_rms_norm(x, residual, weight, eps)
    return y.contiguous(), new_residual.contiguous()


_TRITON = contract.Kernels(run=_triton_run, fwd=_triton_fwd, bwd=_triton_bwd)
SELECTOR = contract.implementations(CONTRACT, _TRITON, _eager)
