"""Time operators beside torch's own on shapes of real models: `tools/off_grid.py --dtype bf16`.

A number is the time of torch's operator, eager, over that of ours (`auto`), forward, lower
quartiles (a host that is held up gives outliers) of triton.testing.do_bench with L2 flushed; below
1 ours is slower. With `--times` microseconds of ours, to set two builds beside each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.testing import do_bench

import fuseline
from fuseline import table

# Vision 197, 577; audio 1500; text 77; classes 10, 3; vocabularies 30522, 50257, 151655, 151936.
SHAPES = (
    (16384, 1500), (98304, 197), (8192, 577), (4096, 1001), (2048, 50257), (1000, 30522),
    (512, 151655), (65536, 10), (1000000, 3), (262144, 77), (250000, 100), (7, 131071),
    (3, 1000003), (1, 1048576), (16, 151936),
)  # fmt: skip
WHOLE = (
    (65536, 64), (98304, 256), (8192, 640), (4096, 1024), (16384, 1536), (512, 4096),
    (4096, 4096), (512, 7168), (512, 8192), (4096, 8192), (2048, 16384), (1024, 32768),
    (512, 65536), (128, 262144),
)  # fmt: skip
TORCHS: dict[str, Callable[..., Any]] = {
    "rms_norm": lambda x, weight, eps: F.rms_norm(x, x.shape[-1:], weight, eps),
    "layer_norm": lambda x, weight, bias, eps: F.layer_norm(x, x.shape[-1:], weight, bias, eps),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
}
OPS = (*TORCHS, "add_rms_norm", "rms_norm_fp8", "double_softmax", "norm_chain",
       "horizontal_reduction_pointwise", "horizontal_reduction_reduction", "softmax_backward",
       "bias_gelu")  # fmt: skip
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def arguments(op: str, x: Tensor) -> dict[str, Any]:
    """Return what the operator takes beside `x`, and `x`."""
    n = x.shape[-1:]
    if op == "softmax_backward":
        return {"dy": torch.randn_like(x), "y": torch.softmax(x, -1)}
    extra = {
        "rms_norm": ("weight",), "add_rms_norm": ("weight",), "rms_norm_fp8": ("weight",),
        "layer_norm": ("weight", "bias"), "bias_gelu": ("bias",),
    }.get(op, ())  # fmt: skip
    found: dict[str, Any] = {"x": x}
    found |= {name: torch.randn(n, device=x.device, dtype=x.dtype) for name in extra}
    if op == "add_rms_norm":
        found["residual"] = torch.randn_like(x)
    if op == "rms_norm_fp8":
        found["scale"] = torch.full((), 0.01, device=x.device)
    return found | ({"eps": 1e-6} if op.endswith(("norm", "norm_fp8")) else {})


def strided(shape: tuple[int, int], dtype: torch.dtype, layout: str) -> Tensor:
    """Return random numbers in a layout."""
    rows, n = shape
    make = {"dense": (rows, n), "every other column": (rows, 2 * n), "transposed": (n, rows)}
    x = torch.randn(make[layout], device="cuda", dtype=dtype)
    return {"dense": x, "every other column": x[:, ::2], "transposed": x.T}[layout]


def microseconds(call: Callable[..., Any], inputs: dict[str, Any]) -> float:
    """Return the lower quartile of the time of a call."""
    return 1e3 * float(do_bench(lambda: call(**inputs), warmup=3, rep=12, quantiles=[0.25]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--whole", action="store_true", help="rows of whole 16-byte accesses")
    parser.add_argument("--times", action="store_true", help="microseconds of ours, not ratios")
    parser.add_argument("--op", action="append", choices=OPS)
    args = parser.parse_args()
    ops = args.op or OPS
    cases = [(shape, "dense") for shape in (WHOLE if args.whole else SHAPES)]
    if not args.whole:
        cases += [((8192, 1500), "every other column"), ((8192, 1500), "transposed")]
    print(f"| {args.dtype} | {' | '.join(ops)} |\n|---|{'---|' * len(ops)}")
    for shape, layout in cases:
        cells = []
        for op in ops:
            inputs = arguments(op, strided(shape, DTYPES[args.dtype], layout))
            mine = microseconds(getattr(fuseline, op), inputs)
            if args.times:
                cells.append(f"{mine:.1f}")
                continue
            theirs = TORCHS.get(op) or table.load()[op].implementation("eager").fn
            cells.append(f"{microseconds(theirs, inputs) / mine:.2f}")
        name = "" if layout == "dense" else f", {layout}"
        print(f"| {shape[0]} x {shape[1]}{name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
