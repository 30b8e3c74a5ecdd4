"""Calls of "auto" in which arguments decide: forward and backward by what each rule picks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fuseline.core.selection.select import Parts, Selector

Function = Callable[..., Any]


def serving(
    selector: Selector,
    kind: Literal["eager", "graph"],
    differentiable: Callable[[Function, Function], Function],
    device_type: str,
) -> tuple[Function, Function]:
    """Return (run, apply): the forward alone, and the one that autograd can follow.

    kind            which functions of the implementations
    differentiable  (fwd, bwd) -> what applies the autograd.Function over them

    What has no such functions, the fallback, serves both directions or none.
    """
    fwd, bwd = (selector.pick(direction, device_type) for direction in ("fwd", "bwd"))
    parts: dict[str, Parts | None] = {c.name: getattr(c, kind) for c in selector.choices}
    applies: dict[tuple[str, str], Function] = {}

    def fallback(*args: Any) -> Any:
        selector.warn(device_type, *args)
        return selector.choices[-1].call(*args)

    def run(*args: Any) -> Any:
        chosen = parts[_name(fwd, args)]
        return chosen.run(*args) if chosen else fallback(*args)

    def apply(*args: Any) -> Any:
        key = (_name(fwd, args), _name(bwd, args))
        if key not in applies:
            first, second = (parts[name] for name in key)
            both = first and second and differentiable(first.fwd, second.bwd)
            applies[key] = both or fallback
        return applies[key](*args)

    usual = parts[fwd] if isinstance(fwd, str) else None
    return usual.run if usual else run, apply


def _name(pick: str | Function, args: tuple[Any, ...]) -> str:
    return pick if isinstance(pick, str) else str(pick(*args))
