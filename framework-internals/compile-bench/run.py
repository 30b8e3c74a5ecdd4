"""Week 10, all of it: what torch.compile costs and brings, and where it gives up."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLES = (
    "many_sizes", "compiled_inside", "made_inside", "compiled_once", "attention_pytorch",
    "naive_softmax", "compiled_naive_softmax", "nn_softmax", "compiled_nn_softmax", "torch_softmax",
)  # fmt: skip


def fuselab(*arguments: object) -> str:
    command = [sys.executable, "-m", "fuselab", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "out")
    out = parser.parse_args().out.resolve()
    print(fuselab("compile-bench", "--out", out))
    for name in EXAMPLES:
        text = fuselab("explain", name, "--out", out / name)
        (out / name / "explain.txt").write_text(text)
        print("\n".join(text.splitlines()[:1] + text.split("\n\n")[1].splitlines()))


if __name__ == "__main__":
    main()
