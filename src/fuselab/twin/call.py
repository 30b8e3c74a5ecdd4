"""JAX's program as an implementation of a torch operator: same memory, differentiable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch
from jax import Array
from torch import Tensor

from fuselab.twin.formulas import FORMULAS
from fuselab.twin.program import Program, program

ALIGNMENT = 64  # bytes; XLA's CPU programs read no array that begins elsewhere


def implementation(op: str) -> Callable[..., Any]:
    """Return fn(**inputs) of an operator; it comes back when XLA is done."""
    if op not in FORMULAS:
        raise KeyError(f"{op} has no formula in JAX; there are {', '.join(FORMULAS)}")

    def call(**inputs: Any) -> Any:
        tensors = {name: t for name, t in inputs.items() if isinstance(t, Tensor)}
        values = {name: v for name, v in inputs.items() if name not in tensors}
        found = program(op, tuple(tensors), values)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values()):
            return _Function.apply(found, *tensors.values())
        out = found.forward(*map(to_jax, tensors.values()))
        return jax.tree.map(to_torch, out)

    return call


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, found: Program, *tensors: Tensor) -> Any:
        out, ctx.vjp = found.saving(*map(to_jax, tensors))
        ctx.backward_of, ctx.needed = found.backward, [t.requires_grad for t in tensors]
        return jax.tree.map(to_torch, out)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        given = tuple(map(to_jax, gradients))
        found = ctx.backward_of(ctx.vjp, given if len(given) > 1 else given[0])
        pairs = zip(found, ctx.needed, strict=True)
        return None, *(to_torch(t) if needed else None for t, needed in pairs)


def to_jax(t: Tensor) -> Array:
    """Return the tensor's memory as an array, or a copy where XLA cannot read it as it is."""
    t = t.detach().contiguous()
    if t.data_ptr() % ALIGNMENT:
        t = t.clone()
    return jax.dlpack.from_dlpack(t)


def to_torch(array: Array) -> Tensor:
    """Return the array's memory as a tensor, when XLA is done with it."""
    array.block_until_ready()
    if array.dtype == jax.numpy.float8_e4m3fn:  # DLPack has it, not every jax and torch do
        return to_torch(array.view(jax.numpy.uint8)).view(torch.float8_e4m3fn)
    return torch.utils.dlpack.from_dlpack(array)
