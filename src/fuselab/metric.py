"""What a metric is: a column of the export, with where it comes from and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from fuselab.model import Measurement, Status
from fuselab.planning.plan import HOST
from fuselab.statistics import stats

FORMS = ("us", "bytes", "si", "percent", "whole", "number")
_OF_UNIT = {"us": "us", "byte": "bytes", "sector": "si", "instruction": "si", "flop": "si"}


@dataclass(frozen=True)
class Subject:
    """What a metric is collected of: a call that was made before and can be made any number of
    times, forward or backward; the forward's inputs by name; the device ("cpu", "cuda:0").
    """

    call: Callable[[], object]
    inputs: Mapping[str, Any]
    device: str


class Item:
    """A measurement beside those that its ratios are over; None where there is none.

    eager, ceiling: of its group. peak: the fixed recipe with the ceiling's mix of streams.
    """

    def __init__(self, measurement: Measurement, role: str) -> None:
        self.measurement, self.role = measurement, role
        self.eager: Item | None = None
        self.ceiling: Item | None = None
        self.peak: Item | None = None
        samples = measurement.samples_us if measurement.status.has_number else ()
        self.summary = stats.summary(samples) if samples else None

    @property
    def good(self) -> bool:
        """Whether the number may be compared with others."""
        return self.measurement.status is Status.OK

    @property
    def median_us(self) -> float | None:
        return self.summary.median if self.summary else None

    @property
    def gbps(self) -> float | None:
        nbytes, median = self.measurement.ideal_bytes, self.median_us
        if not nbytes or not median or self.measurement.timer == HOST:
            return None
        return nbytes / median / 1e3

    def over(self, other: Item | None, figure: str) -> float | None:
        """Return the figure over the other's where both cells are good and both figures known."""
        if other is None or not (self.good and other.good):
            return None
        mine, others = getattr(self, figure), getattr(other, figure)
        return mine / others if mine and others else None


@dataclass(frozen=True)
class Metric:
    """A column of the export: what it is, where it comes from and how it is shown.

    name       of the column
    meaning    what the documentation says of it
    unit       "us", "byte", "ratio", ...; "" for a text or a plain number
    of         item -> value, None for unknown; without it the count of this name is taken
    collect    of a plug-in: finds that count, a finite number from 0 on, in a process of its own
    kind       float, int or str
    title      its heading in the report, `detail` in parentheses; "": shown in no table of cells
    by_kernel  whether its counts are told by kernel, too
    style      how a value is written, one of FORMS; "": by the unit
    """

    name: str
    meaning: str
    unit: str = ""
    _: KW_ONLY
    of: Callable[[Item], Any] | None = None
    collect: Callable[[Subject], float] | None = None
    kind: type = float
    title: str = ""
    detail: str = ""
    by_kernel: bool = False
    style: str = ""

    def __post_init__(self) -> None:
        for field in ("name", "meaning", "unit", "title", "detail"):
            if not isinstance(getattr(self, field), str):
                raise TypeError(f"{field}: got {getattr(self, field)!r}, expected text")
        if self.style not in ("", *FORMS):
            raise ValueError(f"style: got {self.style!r}, expected one of: {', '.join(FORMS)}")

    @property
    def form(self) -> str:
        return self.style or _OF_UNIT.get(self.unit) or ("whole" if self.kind is int else "number")

    def value(self, item: Item) -> Any:
        """Return the value of a cell, None for unknown."""
        if self.of is not None:
            return self.of(item)
        count = item.measurement.counts.get(self.name)
        return count.value if count else None
