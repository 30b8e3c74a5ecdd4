"""All tiles of one entry of a table: times by problem, what the kernels take; no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kernel:
    """Registers a thread, how many of them spill, and bytes of shared memory."""

    name: str
    registers: int
    spills: int
    shared: int


@dataclass(frozen=True)
class Spot:
    """A tile: us by problem, None where it has no right result, which `why` tells."""

    tile: str
    size: int
    warps: int
    us: Mapping[str, float | None]
    why: str = ""
    kernels: tuple[Kernel, ...] = field(default=())


@dataclass(frozen=True)
class Landscape:
    """The tiles of one direction, dtype and class of row lengths.

    kept  the tile that the table gets; `why` it, if there is more to say than its time
    """

    direction: str
    dtype: str
    row: int | None
    spots: tuple[Spot, ...]
    kept: str
    why: str = ""

    @property
    def title(self) -> str:
        rows = f"rows up to {self.row}" if self.row else "longer rows"
        return f"{self.direction} {self.dtype} {rows}"

    def ratio(self, spot: Spot) -> float | None:
        """Return the geometric mean over problems of a tile's time to the best tile's."""
        ratios = []
        for case, us in spot.us.items():
            if us is None:
                return None
            ratios.append(us / min(t for s in self.spots if (t := s.us[case]) is not None))
        return math.prod(ratios) ** (1 / len(ratios)) if ratios else None


def to_markdown(found: Sequence[Landscape]) -> str:
    """Return a table a landscape, the best tiles first."""
    return "\n".join(map(_table, found))


def _table(land: Landscape) -> str:
    cases = list(land.spots[0].us)
    lines = [
        f"## {land.title}",
        "",
        f"| tile | {' | '.join(f'{case}, us' for case in cases)} | to the best | registers "
        "| spills | shared, B |",
        f"|---|{'---:|' * (len(cases) + 4)}",
    ]
    spots = sorted(land.spots, key=lambda s: land.ratio(s) or math.inf)
    lines += [_line(land, spot, cases) for spot in spots]
    lines += ["", land.why] if land.why else []
    return "\n".join(lines) + "\n"


def _line(land: Landscape, spot: Spot, cases: Sequence[str]) -> str:
    ratio = land.ratio(spot)
    told = [f"{us:.2f}" if (us := spot.us[case]) else "-" for case in cases]
    names = ("registers", "spills", "shared")
    taken = [" + ".join(str(getattr(k, name)) for k in spot.kernels) or "-" for name in names]
    kept = " **kept**" if spot.tile == land.kept else ""
    mean = f"{ratio:.3f}" if ratio else spot.why
    return f"| {spot.tile}{kept} | {' | '.join([*told, mean, *taken])} |"
