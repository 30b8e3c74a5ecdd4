"""The contract of layer_norm: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import (
    move_batch_dim_to_front,
    move_weight_batch_to_front,
    unbatched,
)
from fuseline.core.inputs.layout import as_rows, dense, flat
from fuseline.core.registration import contract, operator
from fuseline.ops.layer_norm import impl_aten, impl_eager
from fuseline.primitives.rms import layer_normalised, statistics_dtype
from fuseline.primitives.triton import Wrap

_NAME = "layer_norm"
# What enable() puts these kernels in the place of.
ATEN = {
    "native_layer_norm": (
        "aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, "
        "Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)"
    ),
    "native_layer_norm_backward": (
        "aten::native_layer_norm_backward(Tensor grad_out, Tensor input, "
        "SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, "
        "bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
    ),
}
# Kinds of device on which torch's is faster: sums of more precision than ATen's take longer.
SLOWER_THAN_TORCH = frozenset(("cpu",))
Three = tuple[Tensor, Tensor, Tensor]


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    impl: str = "auto",
) -> Tensor:
    """Return the layer norm of x over its last dimension.

    y = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias, var(x) = mean((x - mean(x))^2)

    x       (..., N), float64, float32, float16 or bfloat16; any layout. One copy at most, none if
            the last stride is 1 and the leading dimensions collapse to one row stride.
    weight  (N,), of x's dtype or float32; None: 1.
    bias    as weight, whatever that is; None: 0.
    eps     not negative.
    impl    "auto", or one of "cuda", "cpu", "triton", "aten" (torch's own kernels, where they
            serve the dtypes), "eager" (the plain formula); a mean that is large beside the spread
            costs the last two digits.

    Returns y, contiguous, with x's shape and dtype, rounded once; exact to a rounding also where
    the mean is 10^7 times the spread (float64: 10^10). Saved for backward: x, weight, bias, mean,
    rstd. Deterministic, gradients included.
    Raises TypeError (dtype), ValueError (shape, device, eps, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: Ba, Kiros and Hinton, Layer Normalization, 2016.
    """
    if (type(eps) is not float or not eps >= 0.0) and not operator.has_proxy(x, weight, bias, eps):
        arguments.require_rows(_NAME, x)
        eps = arguments.require_eps(_NAME, eps, x)
    y: Tensor = operator.call(SELECTOR, validate, layer_norm, impl, x, weight, bias, eps)
    return y


def validate(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> float:
    """Refuse what no implementation takes, naming the argument; return eps."""
    _validate_tensors(x, weight, bias)
    return arguments.require_eps(_NAME, eps, x)


def _validate_tensors(x: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> None:
    arguments.require_rows(_NAME, x)
    arguments.require_weight(_NAME, weight, x)
    arguments.require_weight(_NAME, bias, x, own="bias")


def _validate_bwd(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor) -> None:
    _validate_tensors(x, weight)
    arguments.require_exactly(_NAME, "dy", dy, x.shape, x.dtype, x.device)
    for name, t in (("mean", mean), ("rstd", rstd)):
        arguments.require_exactly(_NAME, name, t, x.shape[:-1], statistics_dtype(x), x.device)


def _fake(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    _validate_tensors(x, weight, bias)
    return x.new_empty(x.shape)


def _fake_fwd(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Three:
    y = _fake(x, weight, bias, eps)
    mean, rstd = (x.new_empty(x.shape[:-1], dtype=statistics_dtype(x)) for _ in range(2))
    return y, mean, rstd


def _fake_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    need_dx: bool,
    need_dweight: bool,
    need_dbias: bool,
) -> Three:
    _validate_bwd(dy, x, weight, mean, rstd)
    parameter = rstd if weight is None else weight
    return (
        x.new_empty(x.shape if need_dx else (0,)),
        x.new_empty((0,)) if weight is None or not need_dweight else weight.new_empty(weight.shape),
        parameter.new_empty(x.shape[-1:]) if need_dbias else x.new_empty((0,)),
    )


def decomposed(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    _validate_tensors(x, weight, bias)
    return layer_normalised(x, weight, bias, eps)


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    def rule(
        info: Any, in_dims: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Any:
        x_dim, *dims, _ = in_dims
        parameters = tuple(zip((weight, bias), dims, strict=True))
        if info.batch_size:
            _validate_tensors(
                unbatched(x, x_dim), *(p if p is None else unbatched(p, d) for p, d in parameters)
            )
        x = move_batch_dim_to_front(x, x_dim, info.batch_size)
        if all(p is None or d is None for p, d in parameters):
            return op(x, weight, bias, eps), 0
        weight, bias = (
            p if p is None or d is None else move_weight_batch_to_front(p, d, x.dim())
            for p, d in parameters
        )
        return layer_normalised(x, weight, bias, eps), 0

    return rule


CONTRACT = contract.Contract(
    name=_NAME,
    args="Tensor x, Tensor? weight, Tensor? bias, float eps",
    fwd_returns="(Tensor, Tensor, Tensor)",
    bwd_args=(
        "Tensor dy, Tensor x, Tensor? weight, Tensor mean, Tensor rstd, bool need_dx, "
        "bool need_dweight, bool need_dbias"
    ),
    bwd_returns="(Tensor, Tensor, Tensor)",
    fake=_fake,
    fake_fwd=_fake_fwd,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    gradient=contract.Gradient(
        ("y", "mean", "rstd"), ("x", "weight", "bias"), alike=("weight", "bias")
    ),
    vmap=_vmap,
    facts=operator.facts_along(lambda *args: -1),
)

_triton = contract.triton_beside(__name__)


def _triton_run(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    wrap: Wrap | None = None,
) -> Tensor:
    _validate_tensors(x, weight, bias)
    y: Tensor = _triton().fwd(as_rows(x), dense(weight), dense(bias), eps, save=False, wrap=wrap)[0]
    return y.view(x.shape)


def _triton_fwd(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    wrap: Wrap | None = None,
) -> Three:
    _validate_tensors(x, weight, bias)
    y, *saved = _triton().fwd(as_rows(x), dense(weight), dense(bias), eps, save=True, wrap=wrap)
    mean, rstd = (t.view(x.shape[:-1]) for t in saved)
    return y.view(x.shape), mean, rstd


def _triton_bwd(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    need_dx: bool,
    need_dweight: bool,
    need_dbias: bool,
    wrap: Wrap | None = None,
) -> Three:
    _validate_bwd(dy, x, weight, mean, rstd)
    need_dweight = need_dweight and weight is not None
    rows = (as_rows(dy), as_rows(x), dense(weight), flat(mean), flat(rstd))
    dx, *rest = _triton().bwd(*rows, need_dx, need_dweight, need_dbias, wrap=wrap)
    dweight, dbias = (x.new_empty((0,)) if t is None else t for t in rest)
    return x.new_empty((0,)) if dx is None else dx.view(x.shape), dweight, dbias


def _eager(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    validate(x, weight, bias, eps)
    return impl_eager.layer_norm(x, weight, bias, eps).contiguous()


_TRITON = contract.Kernels(run=_triton_run, fwd=_triton_fwd, bwd=_triton_bwd)
SELECTOR = contract.implementations(CONTRACT, _TRITON, _eager, impl_aten.provider(ATEN))
