"""From the letters of a layout to placements: one mesh dimension at a time, as torch asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fuseline.sharding.layouts import Layout

Given = Mapping[str, Any]


def choices(layout: Layout, outputs: Sequence[str], given: Given) -> list[tuple[list[Any], Any]]:
    """Return (placements of results, placements of arguments) for all replicated and for each axis
    that may be sharded.

    given  name -> the tensor's metadata or the value
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    inputs = [name for name, value in given.items() if _is_tensor(value)]
    results = [name for name in outputs if _is_needed(name, given)]
    axes = {name: layout.axes(name, given) for name in (*inputs, *results)}

    def placed(name: str, axis: str, without: Any) -> Any:
        mine = axes.get(name)
        if mine is None:
            return Replicate()
        return Shard(mine.index(axis)) if axis in mine else without

    def choice(axis: str) -> tuple[list[Any], list[Any]]:
        return (
            # A gradient of what has not the axis is a sum over it.
            [placed(name, axis, Partial()) for name in outputs],
            [placed(name, axis, Replicate()) if name in inputs else None for name in given],
        )

    replicated = (
        [Replicate() for _ in outputs],
        [Replicate() if n in inputs else None for n in given],
    )
    return [replicated, *map(choice, layout.free(given))]


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "tensor_meta")


def _is_needed(name: str, given: Given) -> bool:
    """Whether a result has elements: a gradient that nobody asks for, or of nothing, has none."""
    return (
        bool(given.get(f"need_{name}", True)) and given.get(name.removeprefix("d"), 0) is not None
    )
