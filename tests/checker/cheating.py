"""Where cheats enter themselves, with the verdict that each must get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

Entry = tuple[Callable[..., Tensor], str, str]
CHEATS: dict[str, Entry] = {}
CPU_CHEATS: dict[str, Entry] = {}
GPU_CHEATS: dict[str, Entry] = {}
BACKWARD_CHEATS: dict[str, Entry] = {}
HONEST: dict[str, Callable[..., Tensor]] = {}
GPU_HONEST: dict[str, Callable[..., Tensor]] = {}
seen: dict[Any, Any] = {}


def cheat(
    status: str, reason: str, among: dict[str, Entry] = CHEATS
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Enter an implementation with the status and the words that it must be caught with.

    Where two questions catch it, one or the other comes first: two statuses.
    """

    def enter(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
        among[fn.__name__] = fn, status, reason
        return fn

    return enter


def honest(
    among: dict[str, Callable[..., Tensor]] = HONEST,
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Enter an implementation that must get a time."""

    def enter(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
        among[fn.__name__] = fn
        return fn

    return enter


def calls(name: str) -> int:
    """Return how often this was asked with the name."""
    seen[name] = seen.get(name, 0) + 1
    return int(seen[name])
