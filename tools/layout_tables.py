"""The study's two tables of bias_dropout_add across layouts: GB/s by n, and the tile of each n.

    python tools/layout_tables.py EXPORT.csv ...

Reads exports of `fuselab run bias_dropout_add --suite layout --direction fwd`
(`fuselab export DIR --format csv`). x is n x 1024, or n x 128; bias and residual are transposed.
The bytes are those of x, bias, residual and the result, the times medians with a cold cache.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable

import torch

from fuseline.ops.bias_dropout_add import tile_for

COLUMNS = {"triton": "Triton", "cpu": "C++", "eager": "Torch", "compile": "Inductor"}


def read(paths: Iterable[str]) -> dict[int, dict[int, dict[str, float]]]:
    """Width -> n -> implementation -> GB/s."""
    found: dict[int, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                size, _, layout = row["case"].partition("-")
                fp32 = row["direction"] == "fwd" and row["dtype"] == "float32"
                if layout == "transposed" and fp32 and row["gbps"]:
                    n, width = map(int, size.split("x"))
                    found[width][n][row["impl"]] = float(row["gbps"])
    return found


def tile(n: int, width: int) -> str:
    """The tile of the Triton kernel for fp32."""
    x, crossing = (torch.empty(shape, device="meta") for shape in ((n, width), (width, n)))
    return tile_for(x, crossing.t(), crossing.t())


def table(width: int, rows: dict[int, dict[str, float]]) -> str:
    impls = [impl for impl in COLUMNS if any(impl in row for row in rows.values())]
    head = ["n", *(COLUMNS[impl] for impl in impls), "tile"]
    lines = [
        [str(n), *(f"{rows[n][i]:.0f}" if i in rows[n] else "" for i in impls), tile(n, width)]
        for n in sorted(rows)
    ]
    rule = ["---:"] * (len(head) - 1) + ["---"]
    text = "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))
    return f"x: n x {width}, fp32, GB/s; tile of Triton: {width}'s axis x n's axis\n\n{text}\n"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print("\n".join(table(*item) for item in sorted(read(sys.argv[1:]).items(), reverse=True)))
