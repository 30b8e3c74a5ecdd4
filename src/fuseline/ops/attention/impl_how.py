"""How scores become probabilities: the arguments that operators of attention share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.inputs import dropout as drop
from fuseline.core.registration import contract

# No sequence is as long.
_FAR = 1 << 30


def how_of(
    op: str,
    q: Tensor,
    causal: bool,
    scale: float | None,
    window: int | tuple[int, int] | None,
    dropout: float,
    seed: int | Tensor | None,
    deterministic: bool,
) -> tuple[Any, ...]:
    """Return these arguments of a public function as its operator takes them: causal, scale, left,
    right, dropout, a number as seed, a tensor as seed, deterministic.
    """
    if type(dropout) is not float:
        dropout = arguments.require_number(op, "dropout", dropout)
    if scale is not None and type(scale) is not float:
        scale = arguments.require_number(op, "scale", scale, "a float or None")
    if torch.are_deterministic_algorithms_enabled():
        deterministic = True
    left, right = (-1, -1) if window is None else _bounds(op, window)
    seeds = (None, None) if dropout == 0.0 else drop.seeds(q, True, seed)
    return causal, scale, left, right, dropout, *seeds, deterministic


def _bounds(op: str, window: int | tuple[int, int]) -> tuple[int, int]:
    """Return the bounds of a window; refuse what is none."""
    if isinstance(window, int) and not isinstance(window, bool):
        if window < 1:
            raise ValueError(f"{op}: window is {window}, expected at least 1")
        return window - 1, window - 1
    pair = tuple(window) if isinstance(window, (tuple, list)) else ()
    if len(pair) != 2 or any(not isinstance(n, int) or isinstance(n, bool) for n in pair):
        raise TypeError(f"{op}: window is {window!r}, expected an int, two ints or None")
    return pair[0], pair[1]


def require_how(op: str, c: Any) -> None:
    """Refuse what no implementation takes; c: a call, with q and these arguments."""
    for name in ("left", "right"):
        if getattr(c, name) >= _FAR:
            raise ValueError(f"{op}: {name} is {getattr(c, name)}, expected less than {_FAR}")
    for name in ("causal", "deterministic"):
        if not isinstance(value := getattr(c, name), bool):
            raise TypeError(f"{op}: {name} is a {type(value).__name__}, expected a bool")
    if c.scale is not None:
        scale = arguments.require_number(op, "scale", c.scale, "a float or None")
        if not -math.inf < scale < math.inf:
            raise ValueError(f"{op}: scale is {scale}, expected a finite number")
    if c.dropout != 0.0 or c.seed is not None or c.seed_tensor is not None:
        drop.require_draw(op, c.q, "dropout", c.dropout, c.seed, c.seed_tensor)
        if c.dropout > 0 and c.seed is None and c.seed_tensor is None:
            raise ValueError(f"{op}: seed is None, expected a number with dropout")


def checked(provider: contract.Provider, validate: Callable[..., None]) -> contract.Provider:
    """Return an implementation with what it is called with looked at first, by validate."""
    kernels = provider.kernels
    run, fwd = (_after(validate, function) for function in (kernels.run, kernels.fwd))
    return replace(provider, kernels=contract.Kernels(run, fwd, kernels.bwd))


def _after(
    validate: Callable[..., None], function: Callable[..., Any] | None
) -> Callable[..., Any]:
    assert function is not None

    def call(*args: Any, **options: Any) -> Any:
        validate(*args)
        return function(*args, **options)

    return call
