"""The contract of rms_norm_fp8: schemas, fakes, and the public function; it has no gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from fuseline.core import arguments, contract, operator
from fuseline.core.batching import move_batch_dim_to_front, move_weight_batch_to_front, unbatched
from fuseline.core.layout import as_rows, dense
from fuseline.ops.rms_norm_fp8 import impl_eager
from fuseline.primitives.rms import normalised
from fuseline.primitives.triton import Wrap

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_NAME = "rms_norm_fp8"
_MOST = torch.finfo(torch.float8_e4m3fn).max


def rms_norm_fp8(
    x: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    eps: float | None = None,
    impl: str = "auto",
) -> Tensor:
    """Return the root-mean-square norm over the last dimension, quantised to float8_e4m3fn.

    y = v / scale, v = x * rsqrt(mean(x^2) + eps) * weight

    x       (..., N), float32, float16 or bfloat16; any layout. One copy at most, none if the last
            stride is 1 and the leading dimensions collapse to one row stride.
    weight  (N,), of x's dtype or float32; None: 1.
    scale   float32, one element, such as () or (1,), on x's device; what the reader of y
            multiplies by.
    eps     not negative; None: torch.finfo(x.dtype).eps.
    impl    "auto", or one of "cuda", "cpu", "triton", "eager" (the plain formula: where squares
            leave the range of float32 it gives 0 or NaN).

    Returns y, contiguous, of x's shape and dtype float8_e4m3fn: v and the division (not a
    multiplication by 1 / scale) in float32, rounded once to the nearest even. What is larger than
    448, Inf included, is 448; NaN stays NaN. Forward only.
    Raises TypeError (dtype), ValueError (shape, device, eps, impl) or RuntimeError (an
    implementation that cannot run here, an input that requires grad) before anything is launched.
    """
    if is_compiling():
        eps = validate(x, weight, scale, eps)
        traced: Tensor = SELECTOR.traced(impl, x.device.type)(x, weight, scale, eps)
        return traced
    try:
        if eps is None:
            eps = arguments.EPS[x.dtype]
        elif type(eps) is not float or not eps >= 0.0:
            eps = arguments.require_eps(_NAME, eps, x)
        device_type = "cuda" if x.is_cuda else "cpu" if x.is_cpu else x.device.type
        y: Tensor = SELECTOR.calls[impl, device_type](x, weight, scale, eps)
    except Exception:
        refuse = partial(validate, x, weight, scale, eps)
        args = (x, weight, scale, eps, impl)
        y = operator.retry(rms_norm_fp8, refuse, rms_norm_fp8, args)
    return y


def validate(x: Tensor, weight: Tensor | None, scale: Tensor, eps: float | None) -> float:
    """Refuse what no implementation takes, naming the argument; return eps."""
    arguments.require_rows(_NAME, x, dtypes=DTYPES)
    arguments.require_weight(_NAME, weight, x)
    _require_scale(scale, x)
    for name, t in (("x", x), ("weight", weight), ("scale", scale)):
        if t is not None and t.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{_NAME}: {name} requires grad, expected a call without: it is forward only"
            )
    return arguments.require_eps(_NAME, eps, x)


def _require_scale(scale: Tensor, x: Tensor) -> None:
    if not isinstance(scale, Tensor):
        raise TypeError(f"{_NAME}: scale is a {type(scale).__name__}, expected a torch.Tensor")
    if scale.dtype != torch.float32 or scale.layout != torch.strided:
        raise TypeError(
            f"{_NAME}: scale is {scale.dtype}, {scale.layout}, "
            "expected torch.float32, torch.strided"
        )
    if scale.numel() != 1:
        raise ValueError(f"{_NAME}: scale has shape {tuple(scale.shape)}, expected one element")
    if scale.device != x.device:
        raise ValueError(f"{_NAME}: scale is on {scale.device}, expected {x.device}, that of x")


def _fake(x: Tensor, weight: Tensor | None, scale: Tensor, eps: float) -> Tensor:
    validate(x, weight, scale, None)
    return x.new_empty(x.shape, dtype=torch.float8_e4m3fn)


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    def rule(
        info: Any, in_dims: Any, x: Tensor, weight: Tensor | None, scale: Tensor, eps: float
    ) -> Any:
        x_dim, weight_dim, scale_dim, _ = in_dims
        if info.batch_size:
            one_weight = None if weight is None else unbatched(weight, weight_dim)
            validate(unbatched(x, x_dim), one_weight, unbatched(scale, scale_dim), None)
        x = move_batch_dim_to_front(x, x_dim, info.batch_size)
        if weight_dim is None and scale_dim is None:
            return op(x, weight, scale, eps), 0
        if weight is not None and weight_dim is not None:
            weight = move_weight_batch_to_front(weight, weight_dim, x.dim())
        scale = move_batch_dim_to_front(scale, scale_dim, info.batch_size)
        v = normalised(x.to(torch.float32), weight, eps) / scale.reshape(-1, *(1,) * (x.dim() - 1))
        return v.clamp(-_MOST, _MOST).to(torch.float8_e4m3fn), 0

    return rule


CONTRACT = contract.Contract(
    name=_NAME,
    args="Tensor x, Tensor? weight, Tensor scale, float eps",
    fake=_fake,
    vmap=_vmap,
)

_triton = contract.triton_beside(__name__)


def _triton_run(
    x: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    eps: float,
    wrap: Wrap | None = None,
) -> Tensor:
    validate(x, weight, scale, None)
    y: Tensor = _triton().fwd(as_rows(x), dense(weight), dense(scale), eps, wrap=wrap)
    return y.view(x.shape)


def _eager(x: Tensor, weight: Tensor | None, scale: Tensor, eps: float) -> Tensor:
    validate(x, weight, scale, eps)
    return impl_eager.rms_norm_fp8(x, weight, scale, eps).contiguous()


SELECTOR = contract.implementations(CONTRACT, contract.Kernels(run=_triton_run), _eager)
