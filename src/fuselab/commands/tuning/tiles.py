"""What is tuned: an entry of a table with its tiles, and the tile that it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fuselab.model import Group, Measurement
from fuselab.statistics import stats
from fuseline.core.selection.tuned import Key, Tile

Found = Mapping[str, Measurement]


@dataclass(frozen=True)
class Slot:
    """One entry of the table: the direction, the dtype that stands for its size, the row length.

    tiles   by name, the present one first
    groups  the problems in which they are compared
    proofs  more problems that the chosen one must be right in
    """

    key: Key
    dtype: str
    row: int | None
    tiles: Mapping[str, Tile]
    groups: tuple[Group, ...]
    proofs: tuple[Group, ...]

    @property
    def present(self) -> str:
        return next(iter(self.tiles))


@dataclass(frozen=True)
class Choice:
    """The tile that an entry gets and why; times by case of the present one and of this, in us."""

    slot: Slot
    name: str
    times: Mapping[str, tuple[float | None, float | None]]
    reason: str = ""

    @property
    def changed(self) -> bool:
        return self.name != self.slot.present


def time_us(measurement: Measurement) -> float | None:
    """Return the median, None where there is no time."""
    return stats.median(measurement.samples_us) if measurement.samples_us else None
