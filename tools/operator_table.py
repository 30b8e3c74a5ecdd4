"""The README's table of operators, from the specs and from what torch's dispatcher holds.

python tools/operator_table.py            # print the table
python tools/operator_table.py --write    # put it into README.md, between its two markers
"""

from __future__ import annotations

import sys
from pathlib import Path

import marked
import torch

from fuseline import table
from fuseline.core.specs.spec import OpSpec

PAGE = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- operators: tools/operator_table.py --write -->", "<!-- /operators -->"
HEADINGS = {
    "cuda": "CUDA C++ (GPU)",
    "triton": "Triton (GPU)",
    "cpu": "C++ (CPU)",
    "eager": "eager",
}
SHORT = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
}


def directions(spec: OpSpec, backend: str) -> str:
    """Return what a backend computes of an operator: "fwd + bwd", "fwd" or nothing."""
    if backend not in {impl.name for impl in spec.implementations}:
        return ""
    if backend == "eager" or not hasattr(torch.ops.fuseline, spec.name):  # made of operators
        return "fwd + bwd" if spec.differentiable else "fwd"
    suffix = "__triton" if backend == "triton" else ""
    return "fwd + bwd" if hasattr(torch.ops.fuseline, f"_{spec.name}_bwd{suffix}") else "fwd"


def render() -> str:
    """Return the table as Markdown, one line per operator of `fuseline.table`."""
    lines = [
        "| operator | " + " | ".join(HEADINGS.values()) + " | dtypes |",
        "|---|" + "---|" * (len(HEADINGS) + 1),
    ]
    for name, spec in table.load().items():
        link = f"[`{name}`](src/fuseline/ops/{name}/README.md)"
        cells = [directions(spec, backend) for backend in HEADINGS]
        dtypes = ", ".join(SHORT[dtype] for dtype in spec.dtypes)
        lines.append(f"| {link} | " + " | ".join(cells) + f" | {dtypes} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        marked.write(PAGE, BEGIN, END, render())
    else:
        sys.stdout.write(render())
