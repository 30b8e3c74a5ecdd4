"""Times short compiled blocks with our operator kept, with its formula in its place
(fuseline.compile_options) and without us; prints a Markdown table.

    OMP_NUM_THREADS=1 python tools/measure_inlining.py [OP]...
    python tools/measure_inlining.py --device cuda --dtype bfloat16 --forward [OP]...

Host time counts, on a GPU to the end of what was queued. Processes for several operators may run
beside each other: they compile together, and measure one after the other.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

import fuseline
from fuseline.core.selection import rules, tuned
from fuseline.inlining import table

ROUNDS, SECONDS = 40, 0.002  # of each variant in turn, and of one sample at least
SIZES = {
    "cpu": ((64, 1024), (512, 1024), (2048, 2048)),
    "cuda": ((4, 4096), (512, 4096), (65536, 128), (8192, 1024), (8192, 4096)),
}
OPS = ("rms_norm", "layer_norm", "softmax", "bias_gelu", "swiglu")
RULES = [
    {"direction": way, "where": {}, "impl": ["eager"], "evidence": {"run": "this"}}
    for way in ("fwd", "bwd")
]
Block = Callable[..., Any]

# Each of ours and torch's own (operator, x, z, w, b).
OURS: dict[str, Block] = {
    "rms_norm": lambda x, z, w, b: fuseline.rms_norm(x, w),
    "layer_norm": lambda x, z, w, b: fuseline.layer_norm(x, w, b),
    "softmax": lambda x, z, w, b: fuseline.softmax(x),
    "bias_gelu": lambda x, z, w, b: fuseline.bias_gelu(x, b),
    "swiglu": lambda x, z, w, b: fuseline.swiglu(x, z),
}
TORCHS: dict[str, Block] = {
    "rms_norm": lambda x, z, w, b: F.rms_norm(x, x.shape[-1:], w),
    "layer_norm": lambda x, z, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    "softmax": lambda x, z, w, b: torch.softmax(x, -1),
    "bias_gelu": lambda x, z, w, b: F.gelu(x + b, approximate="tanh"),
    "swiglu": lambda x, z, w, b: F.silu(x) * z,
}
# What stands beside the operator.
BESIDE: dict[str, Callable[[Block], Block]] = {
    "alone": lambda op: op,
    "sum before": lambda op: lambda x, z, w, b: op(x + z, z, w, b),
    "product after": lambda op: lambda x, z, w, b: op(x, z, w, b) * z,
}


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process of this program measures."""
    with (Path(tempfile.gettempdir()) / "measure_inlining.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_tables(folder: str, machine: str, replaced: bool) -> None:
    for op in OPS:
        file = Path(folder) / op / table.FOLDER / f"{machine}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"machine": machine, "rules": RULES if replaced else []}))
    table._rules.cache_clear()


def compiled(block: Block, options: Any, inputs: list[Any], grad: bool) -> Callable[[], Any]:
    """Return a call of a block, forward or with its gradients, that is compiled."""
    run = torch.compile(block, options=options, dynamic=False)
    if not grad:
        call = torch.no_grad()(lambda: run(*inputs))
    else:
        leaves = [t.detach().requires_grad_() for t in inputs]
        dy = torch.randn_like(run(*leaves))

        def call() -> Any:
            return torch.autograd.grad(run(*leaves), leaves, dy, allow_unused=True)

    for _ in range(3):
        call()
    return call


def sample(call: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def measure(folder: str, name: str, beside: str, size: tuple[int, int], grad: bool) -> list[float]:
    """Return us of ours kept, replaced, and none of ours."""
    torch._dynamo.reset()
    rows, columns = size
    inputs = [torch.randn(rows, columns) for _ in range(2)] + [torch.rand(columns) for _ in "wb"]
    ours, torchs = (BESIDE[beside](ops[name]) for ops in (OURS, TORCHS))
    machine = rules.machine(inputs[0].device.type)
    calls = []
    for replaced in (False, True):
        write_tables(folder, machine, replaced)
        calls.append(compiled(ours, fuseline.compile_options(), inputs, grad))
    calls.append(compiled(torchs, None, inputs, grad))
    with alone():
        repeats = max(1, int(SECONDS / sample(calls[0], 1)))
        rounds = [[sample(call, repeats) for call in calls] for _ in range(ROUNDS)]
    return [median(times) * 1e6 for times in zip(*rounds, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("ops", nargs="*", metavar="OP")
    parser.add_argument("--device", default="cpu", choices=SIZES)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--forward", action="store_true", help="no gradients")
    given = parser.parse_args()
    torch._inductor.config.force_disable_caches = True  # which know one table a process
    torch.set_default_device(given.device)
    torch.set_default_dtype(getattr(torch, given.dtype))
    print("| operator | beside | size | direction | kept | replaced | none | replaced / kept |")
    print("|---|---|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ[tuned.FOLDER] = folder
        for name in given.ops or OPS:
            for beside in BESIDE:
                for size in SIZES[given.device]:
                    for grad in (False,) if given.forward else (False, True):
                        us = measure(folder, name, beside, size, grad)
                        figures = " | ".join(f"{t:.0f}" for t in us)
                        way = "fwd + bwd" if grad else "fwd"
                        cell = f"{name} | {beside} | {size[0]}x{size[1]} | {way}"
                        print(f"| {cell} | {figures} | {us[1] / us[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
