"""Where a cell stands under its roofs: FLOPs per byte, what it reaches, and the picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fuselab.model import Status
from fuselab.output.files import replace
from fuselab.output.plain import plain
from fuselab.records.metrics import Record
from fuselab.report.pictures import plots
from fuselab.report.sections.tables import si

NO_PEAK = "compute roof not measured: run fuselab doctor"
INK = "#3a3f47"
# How far the axes go beyond what they show.
MARGIN = 8.0


@dataclass(frozen=True)
class Peak:
    """The compute roof: FLOP/s that the device was measured to reach, and what measured it."""

    flops: float
    source: str


@dataclass(frozen=True)
class Limits:
    """What bounds a cell: GB/s of its group's ceiling, whose streams are `mix`, and the peak."""

    gbps: float | None
    mix: str = ""
    peak: Peak | None = None

    @property
    def ridge(self) -> float | None:
        """FLOP per byte where the roofs meet."""
        return _over(self.peak.flops, self.gbps, 1e9) if self.peak else None

    def bound(self, intensity: float | None) -> str | None:
        """Return what bounds a call of that FLOP per byte, "memory" or "compute", if known."""
        if self.ridge is None or intensity is None:
            return None
        return "memory" if intensity < self.ridge else "compute"


@dataclass(frozen=True)
class Point:
    """One account of the FLOPs and the bytes of a call, and the time of a call; None: unknown."""

    flops: float | None
    nbytes: float | None
    median_us: float | None

    @property
    def intensity(self) -> float | None:
        """FLOP per byte."""
        return _over(self.flops, self.nbytes)

    @property
    def flops_per_s(self) -> float | None:
        return _over(self.flops, self.median_us, 1e-6)

    @property
    def gbps(self) -> float | None:
        return _over(self.nbytes, self.median_us, 1e3)

    @property
    def visible(self) -> bool:
        """Whether it has a place on logarithmic axes."""
        return bool(self.intensity and self.flops_per_s)


@dataclass(frozen=True)
class Position:
    """A cell under its roofs: by what was measured, and apart from that by the cost model."""

    title: str
    impl: str
    measured: Point
    model: Point
    limits: Limits

    @property
    def drawn(self) -> bool:
        """Whether the picture can show it: it needs the memory roof and a point."""
        return bool(self.limits.gbps) and (self.measured.visible or self.model.visible)


def position(record: Record, title: str, peak: Peak | None = None) -> Position:
    """Return the position of a flat record; a noisy one has no roofs to be held against."""
    moved = (record["dram_read_bytes"], record["dram_write_bytes"])
    time = record["median_us"]
    return Position(
        title,
        record["impl"],
        Point(record["measured_flops"], None if None in moved else sum(moved), time),
        Point(record["flops"], record["ideal_bytes"], time),
        Limits(record["ceiling_gbps"], record["ceiling_mix"] or "", peak)
        if record["status"] == Status.OK
        else Limits(None),
    )


def save_svg(positions: Sequence[Position], path: str | os.PathLike[str]) -> Path | None:
    """Write a panel for each position that can be drawn; None, and no file, if none can."""
    drawn = [found for found in positions if found.drawn]
    if not drawn:
        return None
    with rc_context(plots.STYLE):
        return replace(path, plots.to_svg(figure(drawn)))


def figure(positions: Sequence[Position]) -> Figure:
    """Return the picture of positions that can be drawn."""
    picture = Figure(figsize=(4.8 * len(positions), 3.9), layout="constrained")
    for index, found in enumerate(positions):
        axes = picture.add_subplot(1, len(positions), index + 1)
        _draw(axes, found)
        axes.set_title(plain(found.title), loc="left", color="#1c2026", fontsize=10)
    return picture


def _draw(axes: Any, found: Position) -> None:
    color = plots.colors([found.impl])[found.impl]
    for point, name, fill in ((found.measured, "measured", color), (found.model, "model", "none")):
        if point.visible:
            label = f"{plain(found.impl)}, {name}"
            style = {"mec": color, "mfc": fill, "ms": 6, "mew": 1.4, "ls": ""}
            axes.plot(point.intensity, point.flops_per_s, "o", label=label, **style)
    low, high = _span(found)
    _draw_roofs(axes, found.limits, low, high)
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_major_formatter(FuncFormatter(lambda value, _: si(value)))
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("FLOP per byte", color=INK)
    axes.set_ylabel("FLOP/s", color=INK)
    axes.tick_params(colors=INK, width=0.6, length=3)
    axes.grid(color=INK, alpha=0.12, lw=0.6)
    for spine in axes.spines.values():
        spine.set_color(INK)
    place = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.2), "ncols": 2}
    axes.legend(frameon=False, fontsize=7.5, labelcolor=INK, **place)


def _draw_roofs(axes: Any, limits: Limits, low: float, high: float) -> None:
    speed = (limits.gbps or 0.0) * 1e9
    corner = limits.ridge or high
    label = f"memory: {si(speed, 'B/s')} ({limits.mix} ceiling)"
    axes.plot((low, corner), (low * speed, corner * speed), color=INK, lw=1.1, label=label)
    if limits.peak:
        top = limits.peak.flops
        style = {"color": INK, "lw": 1.1, "ls": (0, (4, 2))}
        axes.plot((corner, high), (top, top), label=f"compute: {si(top, 'FLOP/s')}", **style)
    else:
        axes.plot((), (), ls="", label="compute: not measured")


def _span(found: Position) -> tuple[float, float]:
    """Return from where to where the axis of FLOP per byte goes."""
    shown = [p.intensity for p in (found.measured, found.model) if p.visible and p.intensity]
    if found.limits.ridge:
        shown.append(found.limits.ridge)
    return min(shown) / MARGIN, max(shown) * MARGIN


def _over(above: float | None, below: float | None, unit: float = 1.0) -> float | None:
    return None if above is None or not below else above / below / unit
