"""The landscapes of `fuselab tune`, from what it has measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fuselab.commands.tuning.tiles import Choice, time_us
from fuselab.landscape import write as drawn
from fuselab.landscape.record import Landscape, Spot
from fuselab.storage.store import Store
from fuseline.core.selection.tuned import Tile


def of(choice: Choice, store: Store) -> Landscape:
    """Return every tile of the choice's class, measured as it was."""
    slot, stored = choice.slot, {m.cell: m for m in store.measurements()}

    def spot(name: str, tile: Tile) -> Spot:
        found = {group.case: stored[group.cell(name)] for group in slot.groups}
        wrong = [m.reason for m in found.values() if not m.status.has_number]
        us = {case: time_us(m) for case, m in found.items()}
        return Spot(str(tile), tile.size, tile.warps, us, wrong[0] if wrong else "")

    spots = tuple(spot(name, tile) for name, tile in slot.tiles.items())
    kept = str(slot.tiles[choice.name])
    return Landscape(slot.key[0], slot.dtype, slot.row, spots, kept, choice.reason)


def with_kernels(
    lands: Sequence[Landscape], choices: Sequence[Choice], asked: dict[str, Any], seconds: float
) -> list[Landscape]:
    """Return the landscapes with what the tiles' kernels take of the GPU, where there is one."""
    slots = [
        {
            "direction": choice.slot.key[0],
            "dtype": choice.slot.dtype,
            "row": choice.slot.row,
            "case": choice.slot.groups[0].case,
            "tiles": [list(tile) for tile in choice.slot.tiles.values()],
        }
        for choice in choices
    ]
    found = drawn.kernels(asked | {"slots": slots}, seconds) if asked["device"] != "cpu" else []
    each = iter(found)
    return [
        replace(land, spots=tuple(replace(s, kernels=next(each, ())) for s in land.spots))
        for land in lands
    ]
