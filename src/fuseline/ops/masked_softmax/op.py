"""The contract of masked_softmax: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import move_batch_dim_to_front, unbatched
from fuseline.core.inputs.layout import as_rows
from fuseline.core.registration import contract, operator
from fuseline.ops.masked_softmax import impl_eager
from fuseline.primitives import softmax as formulas
from fuseline.primitives.rms import statistics_dtype
from fuseline.primitives.triton import Wrap

_NAME = "masked_softmax"


def masked_softmax(
    x: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float = 1.0,
    log: bool = False,
    impl: str = "auto",
) -> Tensor:
    """Return the softmax, or its logarithm, of scaled and masked rows.

    z = scale * x + mask, and -Inf in column j of row i where causal and j > i + N - M;
    y = exp(z - max(z)) / sum(exp(z - max(z))), or log of it.

    x       (..., M, N), with causal at least 2 dimensions, else (..., N); float64, float32, float16
            or bfloat16; any layout. One copy at most, none if the last stride is 1 and the leading
            dimensions collapse to one row stride.
    mask    added to each row; any shape that broadcasts to x's; x's dtype or float32; any layout,
            read where it lies, broadcast or not. "cuda" and "triton" copy one whose leading
            dimensions do not collapse to four, "cuda" a float32 one beside float64.
    causal  hides from row i the columns after i + N - M, so that the last row sees all: the lower
            right corner, as FlashAttention has it. What it hides of x and the mask does not matter.
    scale   a finite number.
    log     whether the logarithm is returned, in which hidden columns are -Inf.
    impl    "auto", or one of "cuda", "cpu", "triton", "eager" (torch's own, one operation after
            another).

    Returns y, contiguous, with x's shape and dtype, computed in float32 (float64 for float64) and
    rounded once. A row in which z has a NaN, +Inf or nothing but -Inf is all NaN, as in torch.
    Saved for backward: y. The mask's gradient is that of z, in x's dtype, summed in float32
    (float64) over the dimensions in which the mask is broadcast. Deterministic, gradients included.
    Raises TypeError (dtype, scale), ValueError (shape, device, scale, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: the masked softmax of "Attention Is All You Need" (arXiv:1706.03762).
    """
    if type(scale) is not float and not operator.has_proxy(scale):
        scale = arguments.require_number(_NAME, "scale", scale)
    args = (x, mask, causal, scale, log)
    y: Tensor = operator.call(SELECTOR, validate, masked_softmax, impl, *args)
    return y


def validate(x: Tensor, mask: Tensor | None, causal: bool, scale: float, log: bool) -> None:
    """Refuse what no implementation takes."""
    _require(x, causal, scale, log)
    if mask is not None:
        arguments.require_broadcast(_NAME, "mask", mask, x, or_float=True)


def _require(x: Tensor, causal: bool, scale: float, log: bool, name: str = "x") -> None:
    arguments.require_rows(_NAME, x, name)
    for flag, value in (("causal", causal), ("log", log)):
        if not isinstance(value, bool):
            raise TypeError(f"{_NAME}: {flag} is a {type(value).__name__}, expected a bool")
    if causal and x.dim() < 2:
        raise ValueError(f"{_NAME}: {name} has 1 dimension, expected at least 2 with causal")
    scale = arguments.require_number(_NAME, "scale", scale)
    if not -math.inf < scale < math.inf:
        raise ValueError(f"{_NAME}: scale is {scale}, expected a finite number")


def _validate_bwd(dy: Tensor, y: Tensor, causal: bool, scale: float, log: bool) -> None:
    _require(y, causal, scale, log, "y")
    arguments.require_exactly(_NAME, "dy", dy, y.shape, y.dtype, y.device)


def _fake(x: Tensor, mask: Tensor | None, causal: bool, scale: float, log: bool) -> Tensor:
    validate(x, mask, causal, scale, log)
    return x.new_empty(x.shape)


def _fake_bwd(dy: Tensor, y: Tensor, causal: bool, scale: float, log: bool) -> Tensor:
    _validate_bwd(dy, y, causal, scale, log)
    return y.new_empty(y.shape)


def _hidden(x: Tensor) -> Tensor:
    """Return what causal hides of the last two dimensions."""
    queries, keys = x.shape[-2:]
    return torch.ones(queries, keys, dtype=torch.bool, device=x.device).triu(keys - queries + 1)


def decomposed(x: Tensor, mask: Tensor | None, causal: bool, scale: float, log: bool) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x, mask, causal, scale, log)
    z = x.to(statistics_dtype(x)) * scale
    if mask is not None:
        z = z + mask.to(z.dtype)
    if causal:
        z = z.masked_fill(_hidden(x), -math.inf)
    y = formulas.log_softmax(z, -1) if log else formulas.softmax(z, -1)
    return y.to(x.dtype)


def _gradient(dy: Tensor, y: Tensor, causal: bool, scale: float, log: bool) -> Tensor:
    """Return the formula of dx in differentiable torch operations."""
    dtype = statistics_dtype(y)
    of = formulas.log_gradient if log else formulas.gradient
    dx = of(dy.to(dtype), y.to(dtype), -1) * scale
    return (dx.masked_fill(_hidden(y), 0.0) if causal else dx).to(y.dtype)


def _summed(dz: Tensor, shape: torch.Size) -> Tensor:
    """Return the sum over the dimensions in which a mask of that shape was broadcast."""
    lead = dz.dim() - len(shape)
    dims = [d for d in range(dz.dim()) if d < lead or shape[d - lead] == 1 != dz.shape[d]]
    return dz.sum(dims, dtype=statistics_dtype(dz)).view(shape) if dims else dz


def _function(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> type[torch.autograd.Function]:
    class MaskedSoftmax(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, x: Tensor, mask: Tensor | None, causal: bool, scale: float, log: bool
        ) -> Tensor:
            y: Tensor = fwd(x, mask, causal, scale, log)
            ctx.save_for_backward(y)
            ctx.how = causal, scale, log
            ctx.mask = None if mask is None else (mask.shape, mask.dtype)
            return y

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            (y,) = ctx.saved_tensors
            causal, scale, log = ctx.how
            # y is an output of this node: a graph of the formula goes on through it.
            of = _gradient if contract.wants_graph((dy, y)) else bwd
            dx = dmask = None
            if ctx.needs_input_grad[1]:
                shape, dtype = ctx.mask
                dx = of(dy, y, causal, 1.0, log)
                dmask = _summed(dx, shape).to(dtype)
            if ctx.needs_input_grad[0] and (dx is None or scale != 1.0):
                dx = of(dy, y, causal, scale, log)
            return dx, dmask, None, None, None

    return MaskedSoftmax


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    def rule(info: Any, in_dims: Any, x: Tensor, mask: Tensor | None, *how: Any) -> Any:
        x_dim, mask_dim, *_ = in_dims
        if info.batch_size:
            validate(unbatched(x, x_dim), None if mask is None else unbatched(mask, mask_dim), *how)
        x = move_batch_dim_to_front(x, x_dim, info.batch_size)
        if mask is not None and mask_dim is not None:
            mask = mask.movedim(mask_dim, 0)
            ones = (1,) * (x.dim() - mask.dim())
            mask = mask.view(mask.shape[0], *ones, *mask.shape[1:])
        return op(x, mask, *how), 0

    return rule


CONTRACT = contract.Contract(
    name=_NAME,
    args="Tensor x, Tensor? mask, bool causal, float scale, bool log",
    bwd_args="Tensor dy, Tensor y, bool causal, float scale, bool log",
    bwd_returns="Tensor",
    fake=_fake,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    gradient=contract.Gradient(("y",), ("x",), formula=_gradient),
    function=_function,
    vmap=_vmap,
)

_triton = contract.triton_beside(__name__)


def _triton_run(
    x: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    log: bool,
    wrap: Wrap | None = None,
) -> Tensor:
    validate(x, mask, causal, scale, log)
    rows = _rows(x, causal)
    y: Tensor = _triton().fwd(as_rows(x), x.shape, mask, rows, scale, log, wrap=wrap)
    return y.view(x.shape)


def _triton_bwd(
    dy: Tensor, y: Tensor, causal: bool, scale: float, log: bool, wrap: Wrap | None = None
) -> Tensor:
    _validate_bwd(dy, y, causal, scale, log)
    dx: Tensor = _triton().bwd(as_rows(dy), as_rows(y), _rows(y, causal), scale, log, wrap=wrap)
    return dx.view(y.shape)


def _rows(x: Tensor, causal: bool) -> int:
    """Return the rows of each matrix from which causal hides columns, 0 where it does not."""
    return x.shape[-2] if causal else 0


def _eager(x: Tensor, mask: Tensor | None, causal: bool, scale: float, log: bool) -> Tensor:
    validate(x, mask, causal, scale, log)
    return impl_eager.masked_softmax(x, mask, causal, scale, log).contiguous()


_TRITON = contract.Kernels(run=_triton_run, bwd=_triton_bwd)
SELECTOR = contract.implementations(CONTRACT, _TRITON, _eager)
