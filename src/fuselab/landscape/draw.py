"""Landscapes as heat maps: time over the tile's size and warps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from fuselab.landscape.record import Landscape, Spot

WORST = 2.0  # times the best; beyond it all look alike
COLUMNS = 4


def draw(found: Sequence[Landscape], title: str, path: Path) -> None:
    """Draw a map a class of row lengths, all of one direction and dtype."""
    rows = -(-len(found) // COLUMNS)
    wide = min(COLUMNS, len(found))
    figure, axes = plt.subplots(
        rows, wide, figsize=(3.3 * wide, 2.9 * rows + 0.5), squeeze=False, layout="constrained"
    )
    for place, land in zip(axes.flat, found, strict=False):
        _map(place, land)
    for place in list(axes.flat)[len(found) :]:
        place.axis("off")
    figure.suptitle(title, fontsize=11)
    figure.supxlabel("warps", fontsize=9)
    figure.supylabel("elements a tile", fontsize=9)
    figure.savefig(path)
    plt.close(figure)


def _map(axes: Axes, land: Landscape) -> None:
    """Draw a cell as the best tile of its size and warps, or the kept one, with a frame."""
    sizes = sorted({s.size for s in land.spots})
    warps = sorted({s.warps for s in land.spots})
    best = _best(land)
    grid = [[best.get((s, w), (None, None))[0] or float("nan") for w in warps] for s in sizes]
    axes.imshow(grid, cmap="RdYlGn_r", norm=LogNorm(1.0, WORST), origin="lower", aspect="auto")
    for (size, warp), (ratio, spot) in best.items():
        x, y = warps.index(warp), sizes.index(size)
        text = f"{ratio:.2f}" if ratio else "x"
        axes.text(x, y, text, ha="center", va="center", fontsize=7)
        if spot.tile == land.kept:
            axes.add_patch(plt.Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, linewidth=2))
    axes.set_xticks(range(len(warps)), map(str, warps), fontsize=7)
    axes.set_yticks(range(len(sizes)), map(str, sizes), fontsize=7)
    axes.set_title(land.title, fontsize=8)


def _best(land: Landscape) -> dict[tuple[int, int], tuple[float | None, Spot]]:
    found: dict[tuple[int, int], tuple[float | None, Spot]] = {}
    for spot in land.spots:
        ratio, place = land.ratio(spot), (spot.size, spot.warps)
        before = found.get(place)
        if before and before[1].tile == land.kept:
            continue
        better = before is None or (ratio is not None and ratio < (before[0] or float("inf")))
        if better or spot.tile == land.kept:
            found[place] = (ratio, spot)
    return found
