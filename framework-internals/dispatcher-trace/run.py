"""Week 9, all of it: calls walked from the Python function to the kernel, forward and backward."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CALLS = {
    "torch-rms_norm": ["F.rms_norm(x, (64,), w)"],
    "fuseline-rms_norm": ["fuseline.rms_norm(x, w)"],
    "softmax": ["x.softmax(-1)"],
    "mm-autocast": ["x @ x.t()", "--under", "autocast"],
    "add-inference_mode": ["x + x", "--under", "inference_mode"],
    "vmap": ["torch.vmap(torch.dot)(x, x)"],
    "swiglu": ["swiglu(a, b)", "--setup", str(HERE / "swiglu.py")],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "out")
    out = parser.parse_args().out.resolve()
    for name, call in CALLS.items():
        command = [sys.executable, "-m", "fuselab", "trace", *call, "--out", str(out / name)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        (out / name / "trace.txt").write_text(done.stdout)


if __name__ == "__main__":
    main()
