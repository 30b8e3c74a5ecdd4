"""Writes landscapes into a folder: heat maps, tables, the record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from fuselab.landscape.record import Kernel, Landscape, to_markdown
from fuselab.output.files import replace
from fuselab.processes import child


def kernels(request: dict[str, Any], seconds: float) -> list[tuple[Kernel, ...]]:
    """Return the kernels of each tile of each slot; none where no GPU compiles them."""
    answers, _ = child.ask("fuselab.landscape.child", request, seconds)
    return [tuple(Kernel(**kernel) for kernel in tile) for tile in answers]


def write(found: Sequence[Landscape], what: str, folder: Path) -> None:
    """Write DIR/landscape.md and .json, and a heat map for each direction and dtype."""
    from fuselab.landscape.draw import draw  # matplotlib, only where something is drawn

    replace(folder / "landscape.md", f"# {what}\n\n{to_markdown(found)}")
    record = {"what": what, "landscapes": [asdict(land) for land in found]}
    replace(folder / "landscape.json", json.dumps(record) + "\n")
    for (direction, dtype), some in groupby(found, key=lambda land: (land.direction, land.dtype)):
        lands = list(some)
        title = f"{what}, {direction} {dtype}: time to the best tile's; frame: kept, x: not right"
        draw(lands, title, folder / f"landscape-{direction}-{dtype}.svg")
