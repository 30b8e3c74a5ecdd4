"""The contract of a convolution and batch norm in training."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from fuseline.core.convolutions import geometry
from fuseline.core.convolutions.convolution import FACTS, Backward, Call, Convolution
from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import move_batch_dim_to_front, unbatched
from fuseline.core.registration import contract

NAME = "conv_bn"
_CONVOLUTION = Convolution(NAME, optional=True)


def require(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    eps: float,
    relu: bool,
    *numbers: Any,
) -> float:
    """Refuse what neither mode takes; return eps."""
    check = _CONVOLUTION.validate if is_compiling() else _CONVOLUTION.require
    check(x, weight, bias, *numbers)
    for name, t in (("bn_weight", bn_weight), ("bn_bias", bn_bias)):
        require_channels(name, t, weight)
    if not isinstance(relu, bool):
        raise TypeError(f"{NAME}: relu is a {type(relu).__name__}, expected a bool")
    return arguments.require_eps(NAME, eps, x)


def require_channels(name: str, t: Tensor | None, weight: Tensor) -> None:
    """Refuse what is not one number for each channel, of weight's dtype or float32, or None."""
    if t is not None:
        arguments.require_like_or_float(NAME, name, t, weight, "weight")
        geometry.require_channels(NAME, name, t, weight)


def dense(*vectors: Tensor | None) -> list[Tensor | None]:
    """Return vectors that torch's backward of batch norm can read: it ignores their strides."""
    return [t if t is None else t.contiguous() for t in vectors]


def _wide(x: Tensor) -> torch.dtype:
    """Return what statistics are computed and saved in."""
    return torch.promote_types(x.dtype, torch.float32)


def validate(*args: Any) -> None:
    """Refuse what no implementation takes in training."""
    require(*args)
    call = call_of(*args)
    values = call.x.shape[0] * prod(call.shape[2:])
    if values <= 1:
        raise ValueError(
            f"{NAME}: x has shape {tuple(call.x.shape)}, of which the result has {values} values "
            "in each channel, expected more in training"
        )


def call_of(x: Tensor, weight: Tensor, *args: Any) -> Call:
    """Return the convolution of a call in training, without its bias."""
    return Call(x, weight, None, None, *args[-4:])


def _results(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    x, k = call.x, call.weight.shape[:1]
    mean, var = (x.new_empty(k, dtype=_wide(x)) for _ in range(2))
    return geometry.empty(x, call.shape, call.form), mean, var


def _fake(*args: Any) -> tuple[Tensor, ...]:
    validate(*args)
    return _results(call_of(*args))


def _fake_fwd(*args: Any) -> tuple[Tensor, ...]:
    y, mean, var = _fake(*args)
    return y, mean, var, torch.empty_like(y), torch.empty_like(mean)


def validate_bwd(
    dy: Tensor,
    y: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    h: Tensor,
    mean: Tensor,
    rstd: Tensor,
    relu: bool,
    *rest: Any,
) -> Call:
    """Refuse what no backward takes; return the convolution."""
    require(x, weight, None, bn_weight, bn_bias, 0.0, relu, *rest[:4])
    call = call_of(x, weight, *rest[:4])
    if relu == (y is None):
        expected = "a torch.Tensor with relu" if relu else "None without relu"
        raise TypeError(f"{NAME}: y is a {type(y).__name__}, expected {expected}")
    for name, t in (("dy", dy), ("y", dy if y is None else y), ("h", h)):
        geometry.require_result(NAME, name, t, x, call.shape)
    for name, t in (("mean", mean), ("rstd", rstd)):
        kind = (weight.shape[:1], _wide(x), x.device)
        arguments.require_exactly(NAME, name, t, *kind)
    return call


def gradients(
    args: tuple[Any, ...], dh: Tensor | None, dnorm: tuple[Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """Return what a backward returns, of the gradients of h, if one is needed, and of the norm."""
    _, _, x, weight, bn_weight, bn_bias, *_ = args
    need_dx, need_dweight, *needs = args[-4:]
    call, none = call_of(x, weight, *args[10:14]), x.new_empty((0,))
    dx = dweight = None
    if dh is not None:
        given = Backward(dh, None, x, weight, *call[4:], (need_dx, need_dweight, False))
        dx, dweight, _ = given.convolved(dh)
    placed = (none if t is None else geometry.placed(t, call.form) for t in (dx, dweight))
    each = zip(dnorm, (bn_weight, bn_bias), needs, strict=True)
    return *placed, *(d.to(d.dtype if t is None else t.dtype) if n else none for d, t, n in each)


def _fake_bwd(*args: Any) -> tuple[Tensor, ...]:
    call = validate_bwd(*args)
    _, _, x, weight, bn_weight, bn_bias, _, _, rstd, *_ = args
    need_dx, need_dweight, *needs = args[-4:]
    none = x.new_empty((0,))
    images = ((need_dx, x.shape), (need_dweight, weight.shape))
    channels = (rstd if t is None else t for t in (bn_weight, bn_bias))
    return (
        *(geometry.empty(x, shape, call.form) if need else none.clone() for need, shape in images),
        *(
            t.new_empty(t.shape) if n else none.clone()
            for t, n in zip(channels, needs, strict=True)
        ),
    )


def decomposed(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the training's results in torch operations that autograd, vmap and jvp take apart."""
    validate(*args)
    x, _, bias, bn_weight, bn_bias, eps, relu, *_ = args
    h = call_of(*args)._replace(bias=bias).convolved()
    scale, shift = dense(bn_weight, bn_bias)
    # F.batch_norm would refuse an eps of 0.
    y = torch.batch_norm(h, scale, shift, None, None, True, 0.0, eps, torch.backends.cudnn.enabled)
    wide = h.detach().to(_wide(x))
    var, mean = torch.var_mean(wide, (0, *range(2, h.dim())), correction=1)
    mean = mean if bias is None else mean - bias.detach()
    return torch.relu(y) if relu else y, mean, var


def _function(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> type[torch.autograd.Function]:
    class InTraining(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            y, mean, var, h, rstd = fwd(*args)
            tensors, ctx.rest = args[:5], args[5:]
            ctx.save_for_backward(y if ctx.rest[1] else None, *tensors, h, mean, rstd)
            ctx.mark_non_differentiable(mean, var)
            ctx.set_materialize_grads(False)  # they would be filled with zeros
            return y, mean, var

        @staticmethod
        def backward(ctx: Any, dy: Tensor, *of_statistics: Any) -> Any:
            y, *tensors, h, mean, rstd = ctx.saved_tensors
            needs, (_, relu, *numbers) = ctx.needs_input_grad, ctx.rest
            if contract.wants_graph((dy, *tensors)):
                args = (*tensors, *ctx.rest)
                return contract.differentiable_backward(decomposed, args, needs, dy, None, None)
            x, weight, bias, *norm = tensors
            saved, wanted = (y, x, weight, *norm, h, mean, rstd), (*needs[:2], *needs[3:5])
            grads = bwd(dy, *saved, relu, *numbers, *wanted)
            dx, dweight, *dnorm = (
                g if need else None for g, need in zip(grads, wanted, strict=True)
            )
            dbias = torch.zeros_like(bias) if needs[2] else None
            return dx, dweight, dbias, *dnorm, *(None for _ in ctx.rest)

    return InTraining


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    def rule(info: Any, in_dims: Any, x: Tensor, *args: Any) -> Any:
        size, rest = info.batch_size, args[4:]
        given = list(zip(args[:4], in_dims[1:5], strict=True))
        if size:
            each = (t if t is None else unbatched(t, dim) for t, dim in given)
            validate(unbatched(x, in_dims[0]), *each, *rest)
        # Groups of channels for each, whose statistics are their own.
        x = move_batch_dim_to_front(x, in_dims[0], size).transpose(0, 1).flatten(1, 2)
        others = (
            t if t is None else move_batch_dim_to_front(t, dim, size).flatten(0, 1)
            for t, dim in given
        )
        y, mean, var = op(x, *others, *rest[:-1], rest[-1] * size)
        split = (size, y.shape[1] // max(size, 1))
        return (y.unflatten(1, split), mean.view(split), var.view(split)), (1, 0, 0)

    return rule


_NUMBERS = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups"
CONTRACT = contract.Contract(
    name=NAME,
    args=(
        "Tensor x, Tensor weight, Tensor? bias, Tensor? bn_weight, Tensor? bn_bias, float eps, "
        f"bool relu, {_NUMBERS}"
    ),
    returns="(Tensor, Tensor, Tensor)",
    fwd_returns="(Tensor, Tensor, Tensor, Tensor, Tensor)",
    bwd_args=(
        "Tensor dy, Tensor? y, Tensor x, Tensor weight, Tensor? bn_weight, Tensor? bn_bias, "
        f"Tensor h, Tensor mean, Tensor rstd, bool relu, {_NUMBERS}, bool need_dx, "
        "bool need_dweight, bool need_dbn_weight, bool need_dbn_bias"
    ),
    bwd_returns="(Tensor, Tensor, Tensor, Tensor)",
    fake=_fake,
    fake_fwd=_fake_fwd,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    function=_function,
    vmap=_vmap,
    facts=FACTS,
)
