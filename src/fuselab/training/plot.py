"""The loss curves as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from fuselab.training.record import Trained


def draw(rows: Sequence[Trained], path: Path) -> None:
    """Draw losses, and below them their differences from the first variant's."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, layout="constrained")
    first = rows[0]
    for number, (width, row) in enumerate(zip((6, 4.5, 3.5, 2.5, 1.2), rows, strict=False)):
        color = f"C{number}"
        above.plot(row.losses, label=row.variant, linewidth=width, alpha=0.8, color=color)
        apart = [abs(a - b) or math.nan for a, b in zip(row.losses, first.losses, strict=True)]
        if row is not first:
            below.semilogy(apart, "o", markersize=4, alpha=0.8, color=color)
    above.set_ylabel("loss")
    below.set_ylabel(f"|loss - {first.variant}'s|, if not 0")
    below.set_xlabel("step")
    above.legend(frameon=False)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    plt.close(figure)
