"""Week 11, all of it: one model trained in PyTorch and in JAX; what XLA made of operators."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OPERATORS = ("rms_norm", "softmax", "norm_chain", "pointwise_chain")


def fuselab(*arguments: object) -> str:
    command = [sys.executable, "-m", "fuselab", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "out")
    parser.add_argument("--size", default="small", help="small, medium or full (a GPU's)")
    options = parser.parse_args()
    out = options.out.resolve()
    print(fuselab("train-bench", "--size", options.size, "--out", out))
    for op in OPERATORS:
        text = fuselab("hlo", op, "--out", out / op)
        (out / op / "hlo.txt").write_text(text)
        print(text)
    print(subprocess.run([sys.executable, HERE / "ours.py"], check=True, stdout=subprocess.PIPE,
                         text=True).stdout)  # fmt: skip


if __name__ == "__main__":
    main()
