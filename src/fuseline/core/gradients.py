"""Gradients that have no kernels of their own: the formula's, or a refusal; and where they jump."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as fwd_ad
from torch import Tensor

Function = Callable[..., Any]
NEAR = 16  # roundings, of numbers as large as a ReLU's argument is in the mean


def has_tangent(tensors: Sequence[Tensor]) -> bool:
    """Return whether forward mode differentiates through one of the tensors.

    Compiled graphs enter their level in C++, unseen by forward_ad, so the tensors are asked.
    """
    return any(torch._VF._unpack_dual(t, level=0).tangent is not None for t in tensors)


def wants_graph(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether a backward must itself be differentiable, in reverse or in forward mode."""
    return torch.is_grad_enabled() or (
        fwd_ad._current_level >= 0 and has_tangent([t for t in tensors if t is not None])
    )


def differentiable_backward(
    decomposed: Function, args: Sequence[Any], needs: Sequence[bool], *dys: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the formula's gradients, which can themselves be differentiated where that is wanted.

    dys: one for each output of `decomposed`, None where nothing came.
    """
    graph = wants_graph([*dys, *(a for a in args if isinstance(a, Tensor))])
    with torch.enable_grad():
        # Views of the arguments: the search for gradients ends there, short of what made the
        # arguments (one may depend on another) and of the hooks on them.
        args = [a.view_as(a) if need else a for a, need in zip(args, needs, strict=True)]
        wanted = [a for a, need in zip(args, needs, strict=True) if need]
        outputs = decomposed(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        live = [
            (y, dy)
            for y, dy in zip(outputs, dys, strict=True)
            if dy is not None and y.requires_grad
        ]
        ys, seeds = [y for y, _ in live], [dy for _, dy in live]
        grads = iter(torch.autograd.grad(ys, wanted, seeds, create_graph=graph, allow_unused=True))
    return tuple(next(grads) if need else None for need in needs)


def no_gradient(name: str, op: Any) -> Function:
    """Return what refuses to differentiate an operator, naming the argument."""
    parameters = tuple(a.name for a in op._schema.arguments)

    def refuse(*args: Any) -> Any:
        tensors = [(p, a) for p, a in zip(parameters, args, strict=False) if isinstance(a, Tensor)]
        first = next((p for p, a in tensors if a.requires_grad or has_tangent([a])), "x")
        raise RuntimeError(
            f"{name}: {first} requires grad or has a tangent, "
            "expected a call without: it is forward only"
        )

    return refuse


def by_formula(fwd: Function, decomposed: Function) -> type[torch.autograd.Function]:
    """Return the autograd.Function of an operator whose gradient has no kernels of its own.

    The tensors come first among the arguments.
    """

    class ByFormula(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.save_for_backward(*(a for a in args if isinstance(a, Tensor)))
            ctx.rest = [a for a in args if not isinstance(a, Tensor)]
            return fwd(*args)

        @staticmethod
        def backward(ctx: Any, *dys: Tensor) -> Any:
            args = (*ctx.saved_tensors, *ctx.rest)
            return differentiable_backward(decomposed, args, ctx.needs_input_grad, *dys)

    return ByFormula


def settled_by(
    argument: Callable[[dict[str, Any]], Tensor | None],
) -> Callable[[dict[str, Any], tuple[Tensor, ...]], tuple[Tensor, ...]]:
    """Return the `settled` of a spec whose output is a ReLU of `argument`(inputs).

    Its output gradient is 0 where that is near 0, and signs are what roundings before it leave.
    """

    def settled(inputs: dict[str, Any], dys: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            h = argument(inputs)
        if h is None:
            return dys
        least = NEAR * torch.finfo(h.dtype).eps * h.to(torch.float64).square().mean().sqrt()
        return tuple(dy.where(h.abs() > least, 0.0) for dy in dys)

    return settled
