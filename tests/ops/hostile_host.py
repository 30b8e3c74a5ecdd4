"""Hostile arguments through eager calls in C++ and in Python, which must answer alike.

`PYTHONPATH=tests python tests/ops/hostile_host.py SEED COUNT` tries other seeds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from ops.hostile import NUMBERS
from ops.hostile_tensors import APART, LAST, MUTATIONS
from ops.test_host import SERVED, drawn, eager_call
from torch import Tensor

# What crashes torch or stays changed in the process, and dual tensors, whose level is one for all.
LEFT_OUT = LAST | APART | {"of huge shape", "many rows"}
CHANGES = sorted(set(MUTATIONS) - LEFT_OUT)


def arguments(good: tuple[Any, ...], draw: random.Random) -> list[Any]:
    """Return good arguments with up to three changed, left out, or one more."""
    args = list(good)
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        at = draw.randrange(len(args))
        if isinstance(args[at], Tensor) and draw.random() < 0.8:
            try:
                args[at] = MUTATIONS[draw.choice(CHANGES)](args[at], draw)
            except Exception:  # this tensor cannot be made so: torch's own refusal
                continue
        else:
            args[at] = draw.choice(NUMBERS)
    if draw.random() < 0.1:
        del args[draw.randrange(len(args) + 1) :]
    return [*args, draw.choice(NUMBERS)] if draw.random() < 0.05 else args


def answer(call: Callable[..., Any], *args: Any) -> list[Any]:
    """Return what a call gives: results, or the error."""
    try:
        made = call(*args)
    except Exception as error:
        return [type(error), str(error)]
    return [*made] if isinstance(made, tuple) else [made]


def gradients(outputs: list[Any], args: list[Any]) -> list[Any]:
    live = [y for y in outputs if isinstance(y, Tensor) and y.requires_grad]
    inputs = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    if not live or not inputs:
        return []
    dys = [torch.ones_like(y) for y in live]
    return answer(
        lambda: torch.autograd.grad(live, inputs, dys, allow_unused=True, retain_graph=True)
    )


def alike(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(map(_same, a, b))


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    about = [(type(t), t.dtype, t.shape, t.layout, t.device, t.requires_grad) for t in (a, b)]
    if about[0] != about[1] or a.is_meta or a.layout != torch.strided or type(a) is not Tensor:
        return about[0] == about[1]
    return a.stride() == b.stride() and torch.equal(*(t.double().nan_to_num() for t in (a, b)))


def differences(seed: int, count: int) -> list[str]:
    """Return the calls to which the two answer otherwise."""
    found = []
    for number in range(count):
        draw = random.Random(f"{seed}/{number}")
        torch.manual_seed(number)
        name = draw.choice(SERVED)
        call, good = eager_call(name, **drawn(name))
        args = arguments(good, draw)
        with torch.set_grad_enabled(draw.random() < 0.8):
            mine, theirs = answer(call, *args), answer(call.python, *args)
        if not alike(mine, theirs) or not alike(gradients(mine, args), gradients(theirs, args)):
            found.append(
                f"{seed}/{number} {name}: {str(mine)[:200]}, in Python {str(theirs)[:200]}"
            )
    return found


def check(seed: str, count: str) -> None:
    found = differences(int(seed), int(count))
    assert not found, "\n".join([*found[:10], f"{len(found)} of {count}"])


if __name__ == "__main__":
    check(*sys.argv[1:3])
