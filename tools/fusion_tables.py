"""Tables and heat maps of the fusion suite, as the study has them: who is faster where.

    python tools/fusion_tables.py OUT EXPORT.csv ...

Reads exports of `fuselab run OP --suite fusion` (`fuselab export DIR --format csv`) and writes, for
each operator, direction and dtype, OUT/<op>-<direction>-<dtype>.md with three tables of ratios
(rows: M, columns: N of an M x N problem) and one heat map (.svg) of torch.compile / ours, and
OUT/summary.md. Times are medians of the kernel time with a cold cache; ours is `cuda`, or `triton`
where there is no CUDA kernel. A cell is slower if it is by more than 3 % and 0.3 us.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean

import matplotlib
import matplotlib.colors
import matplotlib.pyplot as plt

matplotlib.use("svg")
RATIOS = (("eager", "ours"), ("compile", "ours"), ("eager", "compile"))
SIZES = [1 << k for k in range(7, 17)]
Times = dict[str, dict[str, str]]  # implementation -> its row of the export
Cells = dict[tuple[int, int], Times]


def read(paths: Iterable[str]) -> dict[tuple[str, str, str], Cells]:
    """(op, direction, dtype) -> (M, N) -> implementation -> row; `ours` beside their own names."""
    found: dict[tuple[str, str, str], Cells] = defaultdict(lambda: defaultdict(dict))
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                size = row["case"].split("x")
                if (
                    row["status"] == "ok"
                    and row["median_us"]
                    and [s.isdigit() for s in size] == [True] * 2
                ):
                    key = row["op"], row["direction"], row["dtype"]
                    found[key][int(size[0]), int(size[1])][row["impl"]] = row
    for cells in found.values():
        for times in cells.values():
            ours = times.get("cuda") or times.get("triton")
            if ours:
                times["ours"] = ours
    return {key: cells for key, cells in found.items() if any("ours" in t for t in cells.values())}


def us(times: Times, impl: str, column: str = "median_us") -> float:
    value = times[impl][column] if impl in times else ""
    return float(value) if value else math.nan


def ratio(times: Times, above: str, below: str, column: str = "median_us") -> float:
    return us(times, above, column) / us(times, below, column)


def table(cells: Cells, above: str, below: str) -> str:
    """Ratios as a Markdown table, empty where one of the two was not measured; "" if nowhere."""
    if all(math.isnan(ratio(times, above, below)) for times in cells.values()):
        return ""
    head = f"{above} / {below}\n\n| M \\ N | " + " | ".join(map(str, SIZES)) + " |\n"
    lines = [head + "|---" * (len(SIZES) + 1) + "|"]
    for m in SIZES:
        values = [ratio(cells.get((m, n), {}), above, below) for n in SIZES]
        shown = " | ".join("" if math.isnan(v) else f"{v:.2f}" for v in values)
        lines.append(f"| {m} | {shown} |")
    return "\n".join(lines)


def heat_map(cells: Cells, title: str, path: Path) -> None:
    """torch.compile / ours over M and N; white where both are equal."""
    grid = [[ratio(cells.get((m, n), {}), "compile", "ours") for n in SIZES] for m in SIZES]
    figure, axes = plt.subplots(figsize=(6.4, 5.2))
    scale = matplotlib.colors.TwoSlopeNorm(1.0, vmin=0.5, vmax=3.0)
    image = axes.imshow(grid, cmap="RdYlGn", norm=scale, origin="lower")
    for i, row in enumerate(grid):
        for j, value in enumerate(row):
            if not math.isnan(value):
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6.5)
    axes.set_xticks(range(len(SIZES)), map(str, SIZES), rotation=45, fontsize=7)
    axes.set_yticks(range(len(SIZES)), map(str, SIZES), fontsize=7)
    axes.set(xlabel="N", ylabel="M", title=title)
    figure.colorbar(image, label="torch.compile / ours, kernel time")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def mean(values: Iterable[float]) -> str:
    known = [v for v in values if not math.isnan(v)]
    return f"{geometric_mean(known):.2f}" if known else ""


def is_slower(times: Times) -> bool:
    own = ("ours", "cuda", "triton", "ceiling")
    rivals = [us(times, name) for name in times if name not in own]
    ours = us(times, "ours")
    return bool(rivals) and ours > 1.03 * min(rivals) and ours > min(rivals) + 0.3


def summary(key: tuple[str, str, str], cells: Cells) -> str:
    """One row: means over sizes, the least share of the ceiling, and the cells that are slower."""
    known = {size: t for size, t in cells.items() if "ours" in t}
    traffic = {size: us(t, "ours", "ideal_bytes") for size, t in known.items()}
    big = [t for size, t in known.items() if traffic[size] >= 4e6]
    huge = [t for size, t in known.items() if traffic[size] >= 256e6]
    small = [t for size, t in known.items() if traffic[size] < 1e6]
    shares = [100 * ratio(t, "ceiling", "ours") for t in huge if "ceiling" in t]
    slower = [f"{m}x{n}" for (m, n), t in sorted(known.items()) if is_slower(t)]
    columns = (
        *key,
        str(len(known)),
        mean(ratio(t, "compile", "ours") for t in big),
        mean(ratio(t, "eager", "ours") for t in huge),
        f"{min(shares):.0f} to {max(shares):.0f} %" if shares else "",
        mean(ratio(t, "compile", "ours", "host_us") for t in small),
        f"{len(slower)}: {' '.join(slower)}" if slower else "0",
    )
    return "| " + " | ".join(columns) + " |"


def main(out: Path, exports: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    found = read(exports)
    columns = (
        "op",
        "direction",
        "dtype",
        "cells",
        "compile / ours, from 4 MB",
        "eager / ours, from 256 MB",
        "share of the ceiling, from 256 MB",
        "compile / ours on the host, below 1 MB",
        "slower than the best rival",
    )
    head = "| " + " | ".join(columns) + " |"
    rows = [summary(key, cells) for key, cells in sorted(found.items())]
    (out / "summary.md").write_text("\n".join([head, "|---" * len(columns) + "|", *rows]) + "\n")
    for key, cells in found.items():
        name = "-".join(key)
        tables = "\n\n".join(filter(None, (table(cells, *pair) for pair in RATIOS)))
        (out / f"{name}.md").write_text(
            f"# {' '.join(key)}: kernel time with a cold cache\n\n{tables}\n"
        )
        heat_map(cells, " ".join(key), out / f"{name}.svg")
    print((out / "summary.md").read_text())


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
