"""The contract of bias_gelu: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import (
    move_batch_dim_to_front,
    move_weight_batch_to_front,
    unbatched,
)
from fuseline.core.inputs.layout import as_rows, dense, dense_as, flat, memory_order
from fuseline.core.registration import contract, operator
from fuseline.ops.bias_gelu import impl_eager
from fuseline.primitives.gelu import gelu, require_approximate
from fuseline.primitives.triton import Wrap

_NAME = "bias_gelu"
# What enable() puts the CPU's kernels in the place of, with approximate="tanh".
ATEN = {
    "gelu": 'aten::gelu(Tensor self, *, str approximate="none") -> Tensor',
    "gelu_backward": (
        'aten::gelu_backward(Tensor grad_output, Tensor self, *, str approximate="none") -> Tensor'
    ),
}
Pair = tuple[Tensor, Tensor]


def bias_gelu(x: Tensor, bias: Tensor, approximate: str = "tanh", impl: str = "auto") -> Tensor:
    """Return the GELU of x + bias.

    With h = x + bias, y = h * Phi(h), the normal distribution, for "none"; for "tanh"
    y = h / 2 * (1 + tanh(sqrt(2 / pi) * (h + 0.044715 * h^3))).

    x            (..., N), float64, float32, float16 or bfloat16; any layout. One copy is made
                 of one with gaps or repeated elements, unless its last stride is 1 and the leading
                 dimensions collapse to one row stride; by "cuda" only if those transpose 2^18
                 elements or more, or lie in more than four dimensions that do not merge.
    bias         (N,), of x's dtype.
    approximate  "tanh" or "none", as in torch.nn.functional.gelu.
    impl         "auto", or one of "cuda", "cpu", "triton", "eager" (the plain formula, which has no
                 digits left where the result is small).

    Returns y with x's shape and dtype, rounded once; computed in float32 (float64: float64). It has
    x's memory layout, as torch.empty_like(x) has; so has the gradient of x. Saved for backward: x
    and bias. Deterministic, gradients included: that of bias is summed over rows in a fixed order.
    Raises TypeError (dtype), ValueError (shape, device, approximate, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: Gaussian Error Linear Units, Hendrycks and Gimpel, 2016 (arXiv:1606.08415).
    """
    y: Tensor = operator.call(SELECTOR, validate, bias_gelu, impl, x, bias, approximate)
    return y


def validate(x: Tensor, bias: Tensor, approximate: str) -> None:
    """Refuse what no implementation takes."""
    arguments.require_rows(_NAME, x)
    arguments.require_like(_NAME, "bias", bias, x)
    if bias.shape != x.shape[-1:]:
        raise ValueError(
            f"{_NAME}: bias has shape {tuple(bias.shape)}, "
            f"expected {tuple(x.shape[-1:])}, the last dimension of x"
        )
    require_approximate(_NAME, approximate)


def _validate_bwd(dy: Tensor, x: Tensor, bias: Tensor, approximate: str) -> None:
    validate(x, bias, approximate)
    arguments.require_exactly(_NAME, "dy", dy, x.shape, x.dtype, x.device)


def _fake(x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    validate(x, bias, approximate)
    return torch.empty_like(x)


def _fake_bwd(
    dy: Tensor, x: Tensor, bias: Tensor, approximate: str, need_dx: bool, need_dbias: bool
) -> Pair:
    _validate_bwd(dy, x, bias, approximate)
    dx = torch.empty_like(x) if need_dx else x.new_empty((0,))
    return dx, x.new_empty(bias.shape if need_dbias else (0,))


def _gelu(x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    """Return the operator with any bias that broadcasts."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return gelu(x.to(wide) + bias.to(wide), approximate).to(x.dtype)


def decomposed(x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x, bias, approximate)
    return _gelu(x, bias, approximate)


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    def rule(info: Any, in_dims: Any, x: Tensor, bias: Tensor, approximate: str) -> Any:
        x_dim, bias_dim, _ = in_dims
        if info.batch_size:
            validate(unbatched(x, x_dim), unbatched(bias, bias_dim), approximate)
        x = move_batch_dim_to_front(x, x_dim, info.batch_size)
        if bias_dim is None:
            return op(x, bias, approximate), 0
        return _gelu(x, move_weight_batch_to_front(bias, bias_dim, x.dim()), approximate), 0

    return rule


CONTRACT = contract.Contract(
    name=_NAME,
    args="Tensor x, Tensor bias, str approximate",
    bwd_args=("Tensor dy, Tensor x, Tensor bias, str approximate, bool need_dx, bool need_dbias"),
    bwd_returns="(Tensor, Tensor)",
    fake=_fake,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    gradient=contract.Gradient(("y",), ("x", "bias")),
    vmap=_vmap,
)

_triton = contract.triton_beside(__name__)


def _triton_run(x: Tensor, bias: Tensor, approximate: str, wrap: Wrap | None = None) -> Tensor:
    validate(x, bias, approximate)
    fwd, tanh = _triton().fwd, approximate == "tanh"
    if x.is_contiguous():
        y: Tensor = fwd(as_rows(x), dense(bias), tanh, wrap=wrap)
        return y.view(x.shape)
    order = memory_order(torch.empty_like(x))
    t, place = x.permute(order), order.index(x.dim() - 1)
    lines = prod(t.shape[place + 1 :])  # elements between two neighbours of a row
    rows = as_rows(t.flatten(place)) if lines == 1 else flat(t).view(-1, lines)
    y = fwd(rows, dense(bias), tanh, across=lines > 1, wrap=wrap)
    return y.view(t.shape).permute([order.index(d) for d in range(x.dim())])


def _triton_bwd(
    dy: Tensor,
    x: Tensor,
    bias: Tensor,
    approximate: str,
    need_dx: bool,
    need_dbias: bool,
    wrap: Wrap | None = None,
) -> Pair:
    _validate_bwd(dy, x, bias, approximate)
    dx, dbias = _triton().bwd(
        as_rows(dy), as_rows(x), dense(bias), approximate == "tanh", need_dx, need_dbias, wrap=wrap
    )
    none = x.new_empty((0,))
    return none if dx is None else _laid_out(dx.view(x.shape), x), none if dbias is None else dbias


def _laid_out(dx: Tensor, x: Tensor) -> Tensor:
    """Return dx, contiguous, in the layout of x."""
    return dx if x.is_contiguous() else dense_as(dx, torch.empty_like(x))


def _eager(x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    validate(x, bias, approximate)
    return impl_eager.bias_gelu(x, bias, approximate)


_TRITON = contract.Kernels(run=_triton_run, bwd=_triton_bwd)
SELECTOR = contract.implementations(CONTRACT, _TRITON, _eager)
