"""RMSNorm's contract: schemas, fakes, gradients, and the public function."""

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
from fuseline.core.selection.tuned import Tile
from fuseline.core.specs.spec import Direction
from fuseline.ops.rms_norm import impl_aten, impl_eager
from fuseline.primitives.rms import normalised, statistics_dtype
from fuseline.primitives.triton import Wrap

# What enable() puts these kernels in the place of: the schemas of torch 2.10, 2.13 and 2.15.
ATEN = {
    "_fused_rms_norm": (
        "aten::_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) "
        "-> (Tensor, Tensor)"
    ),
    "_fused_rms_norm_backward": (
        "aten::_fused_rms_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, "
        "Tensor rstd, Tensor? weight, bool[2] output_mask) -> (Tensor, Tensor)"
    ),
}
_EPS = arguments.EPS


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    impl: str = "auto",
    *,
    weight_offset: float = 0.0,
) -> Tensor:
    """Return the root-mean-square norm of x over its last dimension.

    y = x * rsqrt(mean(x^2) + eps) * (weight_offset + weight)

    x       (..., N), float64, float32, float16 or bfloat16; any layout. One copy at most, none if
            the last stride is 1 and the leading dimensions collapse to one row stride.
    weight  (N,), of x's dtype or float32; None: all is multiplied by 1.
    eps     not negative; None: torch.finfo(x.dtype).eps.
    impl    "auto", or one of "cuda", "cpu", "triton", "aten" (torch's own kernels on a GPU, where
            they serve the dtypes), "eager" (the plain formula); where squares leave the range of
            float32 the last two give 0 or Inf.
    weight_offset  finite; 1.0 for weights that are learned around 0, as Gemma's. Other than 0 it
            needs a weight.

    Returns y, contiguous, with x's shape and dtype, computed in float32 (float64 for float64) and
    rounded once. Saved for backward: x, weight, rstd. Deterministic, gradients included.
    Raises TypeError (dtype), ValueError (shape, device, eps, impl, weight_offset) or RuntimeError
    (an implementation that cannot run here) before anything is launched.
    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    if is_compiling():
        x, weight, _ = operator.admitted(validate, x, weight, eps)
        eps = arguments.require_eps("rms_norm", eps, x)
        offset = arguments.require_weight_offset("rms_norm", weight_offset, weight)
        y: Tensor = SELECTOR.traced(impl, x.device.type)(x, weight, eps, offset)
        return y
    try:
        if eps is None:
            eps = _EPS[x.dtype]
        elif type(eps) is not float or not eps >= 0.0:
            eps = arguments.require_eps("rms_norm", eps, x)
        # Two attributes cost a fifth of `x.device.type`.
        device_type = "cuda" if x.is_cuda else "cpu" if x.is_cpu else x.device.type
        if type(weight_offset) is float and weight_offset == 0.0:
            y = SELECTOR.calls[impl, device_type](x, weight, eps)
        else:
            offset = arguments.require_weight_offset("rms_norm", weight_offset, weight)
            y = SELECTOR.calls[impl, device_type](x, weight, eps, offset)
    except Exception:
        options: Any = {"weight_offset": weight_offset}
        rerun, refuse = partial(rms_norm, **options), partial(validate, x, weight, eps, **options)
        y = operator.retry(rerun, refuse, rms_norm, (x, weight, eps, impl), **options)
    return y


def validate(
    x: Tensor, weight: Tensor | None, eps: float | None, weight_offset: float = 0.0
) -> float:
    """Refuse what no implementation takes, naming the argument; return eps."""
    arguments.require_rows("rms_norm", x)
    arguments.require_weight("rms_norm", weight, x)
    arguments.require_weight_offset("rms_norm", weight_offset, weight)
    return arguments.require_eps("rms_norm", eps, x)


def _validate_bwd(
    dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, weight_offset: float
) -> None:
    validate(x, weight, None, weight_offset)
    arguments.require_exactly("rms_norm", "dy", dy, x.shape, x.dtype, x.device)
    arguments.require_exactly("rms_norm", "rstd", rstd, x.shape[:-1], statistics_dtype(x), x.device)


def _fake(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    validate(x, weight, None, weight_offset)
    return x.new_empty(x.shape)


def _fake_fwd(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    y = _fake(x, weight, eps, weight_offset)
    return y, x.new_empty(x.shape[:-1], dtype=statistics_dtype(x))


def _fake_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    need_dx: bool,
    need_dweight: bool,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    _validate_bwd(dy, x, weight, rstd, weight_offset)
    dx = x.new_empty(x.shape if need_dx else (0,))
    if need_dweight and weight is not None:
        return dx, weight.new_empty(weight.shape)
    return dx, x.new_empty((0,))


def decomposed(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x, weight, None, weight_offset)
    return normalised(x, weight, eps, weight_offset)


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    def rule(
        info: Any,
        in_dims: Any,
        x: Tensor,
        weight: Tensor | None,
        eps: float,
        weight_offset: float = 0.0,
    ) -> Any:
        x_dim, weight_dim, *_ = in_dims
        if info.batch_size:
            one_weight = None if weight is None else unbatched(weight, weight_dim)
            validate(unbatched(x, x_dim), one_weight, None, weight_offset)
        x = move_batch_dim_to_front(x, x_dim, info.batch_size)
        if weight is None or weight_dim is None:
            return op(x, weight, eps, weight_offset), 0
        weight = move_weight_batch_to_front(weight, weight_dim, x.dim())
        return normalised(x, weight, eps, weight_offset), 0

    return rule


CONTRACT = contract.Contract(
    name="rms_norm",
    args="Tensor x, Tensor? weight, float eps, float weight_offset=0.0",
    fwd_returns="(Tensor, Tensor)",
    bwd_args=(
        "Tensor dy, Tensor x, Tensor? weight, Tensor rstd, bool need_dx, bool need_dweight, "
        "float weight_offset=0.0"
    ),
    bwd_returns="(Tensor, Tensor)",
    fake=_fake,
    fake_fwd=_fake_fwd,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    gradient=contract.Gradient(("y", "rstd"), ("x", "weight")),
    vmap=_vmap,
    facts=operator.facts_along(lambda *args: -1),
)

_triton = contract.triton_beside(__name__)


def _triton_run(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    wrap: Wrap | None = None,
    tile: Tile | None = None,
) -> Tensor:
    impl, usual = _triton(), wrap is None and tile is None
    if usual:
        like_before: Tensor | None = impl.again(x, weight, eps, weight_offset)
        if like_before is not None:
            return like_before
    validate(x, weight, None, weight_offset)
    rows, scale = as_rows(x), dense(weight)
    y: Tensor = impl.fwd(
        rows, scale, eps, save_rstd=False, weight_offset=weight_offset, wrap=wrap, tile=tile
    )[0]
    if usual:
        impl.remember(x, weight, y, eps, weight_offset)
    return y.view(x.shape)


def _triton_fwd(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float = 0.0,
    wrap: Wrap | None = None,
) -> tuple[Tensor, Tensor]:
    validate(x, weight, None, weight_offset)
    y, rstd = _triton().fwd(
        as_rows(x), dense(weight), eps, save_rstd=True, weight_offset=weight_offset, wrap=wrap
    )
    return y.view(x.shape), rstd.view(x.shape[:-1])


def _triton_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    need_dx: bool,
    need_dweight: bool,
    weight_offset: float = 0.0,
    wrap: Wrap | None = None,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    _validate_bwd(dy, x, weight, rstd, weight_offset)
    need_dweight = need_dweight and weight is not None
    rows = (as_rows(dy), as_rows(x), dense(weight), rstd.reshape(-1))
    dx, dweight = _triton().bwd(
        *rows, need_dx, need_dweight, weight_offset=weight_offset, wrap=wrap, tile=tile
    )
    return (
        x.new_empty((0,)) if dx is None else dx.view(x.shape),
        x.new_empty((0,)) if dweight is None else dweight,
    )


def triton_candidates(direction: Direction, element_size: int, row: int | None) -> tuple[Tile, ...]:
    """Return the tiles worth trying for rows up to this length."""
    found: tuple[Tile, ...] = _triton().candidates(direction, element_size, row)
    return found


def triton_with(tile: Tile) -> Callable[..., Tensor]:
    """Return RMSNorm in Triton with a given tile: for the forward; with grad, the backward."""
    assert CONTRACT.function is not None
    differentiable = CONTRACT.function(_triton_fwd, partial(_triton_bwd, tile=tile))

    def call(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
        if torch.is_grad_enabled():
            y: Tensor = differentiable.apply(x, weight, eps, weight_offset)
            return y
        return _triton_run(x, weight, eps, weight_offset, tile=tile)

    return call


def _eager(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    validate(x, weight, eps, weight_offset)
    return impl_eager.rms_norm(x, weight, eps, weight_offset).contiguous()


_TRITON = contract.Kernels(run=_triton_run, fwd=_triton_fwd, bwd=_triton_bwd)
SELECTOR = contract.implementations(CONTRACT, _TRITON, _eager, impl_aten.provider(ATEN))
