"""Cheats that put the work off until somebody reads, lend memory, or change the process later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from checker import model
from checker.cheating import BACKWARD_CHEATS, CPU_CHEATS, calls, cheat, honest, seen
from torch import Tensor

# Beyond the first call, which is looked at most.
LATER = 20


class Later(tuple[Any, ...]):
    """Computes whenever it is iterated over."""

    def __iter__(self) -> Iterator[Any]:
        make, *args = tuple.__iter__(self)
        return iter([make(*args)])


@cheat("error", "got a generator, expected a tensor")
def as_a_generator(x: Tensor, weight: Tensor, eps: float) -> Any:
    return (model.eager(x, weight, eps) for _ in range(1))


@cheat("incorrect", "expected a Tensor|more than the reference has")
def as_a_tuple_that_computes(x: Tensor, weight: Tensor, eps: float) -> Any:
    return Later((model.eager, x, weight, eps))


def _with_methods(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    result = torch.empty_like(x)

    def real() -> Tensor:
        if "real" not in vars(result):
            result.real_one = model.eager(x, weight, eps)
        return result.real_one

    result.detach = result.clone = real
    for name in ("to", "double", "isnan", "nan_to_num", "view", "reshape"):
        setattr(result, name, lambda *a, n=name, **k: getattr(real(), n)(*a, **k))
    return result


@cheat("incorrect", "has its own detach, clone")
def methods_that_compute(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _with_methods(x, weight, eps)


@cheat("incorrect", "in a later call|in a timed call")
def methods_that_compute_later(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    later = calls("methods") > LATER
    return _with_methods(x, weight, eps) if later else model.eager(x, weight, eps)


class _Unmade(torch.autograd.Function):
    """A backward whose gradient has methods of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return model.eager(x, weight, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            y = model.eager(x, weight, ctx.eps)
        dx, dw = torch.autograd.grad(y, (x, weight), dy)
        seen["kept alive"] = dx
        dx.clone = lambda *a, **k: dx
        return dx, dw, None


@cheat("incorrect", "has its own clone", BACKWARD_CHEATS)
def gradient_with_methods(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _Unmade.apply(x, weight, eps)


def _from_ring(of: int, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    place = calls(f"ring of {of}") % of
    key = "ring", of, place
    if key not in seen:
        seen[key] = torch.empty_like(x)
    return seen[key].copy_(model.eager(x, weight, eps))


@cheat("invalid", "lie in the same memory")
def one_buffer(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _from_ring(1, x, weight, eps)


@cheat("invalid", "lie in the same memory")
def seven_buffers(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _from_ring(7, x, weight, eps)


@cheat("invalid", "wrote to its input x and put it back")
def puts_its_input_back(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    before = x.clone()
    y = model.eager(x.neg_(), -weight, eps).clone()
    x.copy_(before)
    return y


@cheat("invalid", "denormals: True became False", CPU_CHEATS)
def flushes_denormals(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    torch.set_flush_denormal(True)
    return model.eager(x, weight, eps)


@cheat("invalid", "threads: ", CPU_CHEATS)
def other_threads_later(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if calls("threads") == LATER * 3:
        torch.set_num_threads(torch.get_num_threads() + 1)
    return model.eager(x, weight, eps)


@cheat("invalid", "priority: ", CPU_CHEATS)
def steps_back(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + 1))
    return model.eager(x, weight, eps)


@cheat("invalid", "replaced fuselab.worker.tensors.contents._RANDOM")
def patched_random_source(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    import random

    from fuselab.worker.tensors import contents

    contents._RANDOM = random.Random(0)
    return model.eager(x, weight, eps)


@honest()
def as_a_named_tuple(x: Tensor, weight: Tensor, eps: float) -> Any:
    return torch.return_types.sort((model.eager(x, weight, eps), x))[:1]


@honest()
def as_a_list(x: Tensor, weight: Tensor, eps: float) -> Any:
    return [model.eager(x, weight, eps)]
