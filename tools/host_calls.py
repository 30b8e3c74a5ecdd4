"""What a call costs the host: torch's operators, the same under enable(), and ours.

    python tools/host_calls.py [--device cuda] [--rounds 100] > results/cpu/host-DATE/calls.md

"C++" and "Python" are the two ways to call ours (decision 0032). x is 4 x 64 float32. Blocks of 100
calls, all in turn, and of each the fastest block, since others may use the processor; on a GPU the
queue is empty before every 20 calls.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

import fuseline
from fuseline.core import host
from fuseline.core.selection.select import asked

ROWS, COLUMNS, CALLS, QUEUED = 4, 64, 100, 20
Function = Callable[..., Tensor]
# Ours beside torch's, on x, weight and bias.
OPERATORS: dict[str, tuple[Function, Function, int]] = {
    "softmax": (fuseline.softmax, lambda x: torch.softmax(x, -1), 1),
    "log_softmax": (fuseline.log_softmax, lambda x: torch.log_softmax(x, -1), 1),
    "layer_norm": (fuseline.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b), 3),
    "rms_norm": (fuseline.rms_norm, lambda x, w: F.rms_norm(x, w.shape, w), 2),
}
WAYS = ("torch", "enabled", "C++", "Python")
KINDS = ("without grad", "with grad", "with backward")


class Calls:
    """What eager code calls of one of our operators: in C++ as it is, or in Python."""

    def __init__(self, public: Function, args: tuple[Tensor, ...]) -> None:
        self._all = asked(public, *args).selector.calls
        self._key = ("auto", args[0].device.type)
        self._ways = {"C++": self._all[self._key], "Python": self._all[self._key].python}

    def go(self, way: str) -> None:
        if way in self._ways:
            self._all[self._key] = self._ways[way]


def kinds(call: Function, args: tuple[Tensor, ...]) -> dict[str, Callable[[], object]]:
    """Return the three calls of a cell."""
    tracked = tuple(a.clone().requires_grad_() for a in args)
    dy = torch.randn_like(args[0])
    return {
        "without grad": lambda: call(*args),
        "with grad": lambda: call(*tracked),
        "with backward": lambda: torch.autograd.grad(call(*tracked), tracked, dy),
    }


def block(run: Callable[[], object], device: str) -> float:
    """Return microseconds of the host a call."""
    total = 0.0
    for _ in range(CALLS // QUEUED):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = perf_counter()
        for _ in range(QUEUED):
            run()
        total += perf_counter() - begin
    return total / CALLS * 1e6


def measure(device: str, rounds: int) -> dict[tuple[str, str, str], float]:
    """Return the fastest block of each operator, way and kind."""
    tensors = [torch.randn(s, device=device) for s in ((ROWS, COLUMNS), (COLUMNS,), (COLUMNS,))]
    rows = []
    for name, (ours, theirs, count) in OPERATORS.items():
        args = tuple(tensors[:count])
        rows.append((name, Calls(ours, args), kinds(ours, args), kinds(theirs, args)))
    best: dict[tuple[str, str, str], float] = {}
    for _ in range(rounds):
        for (name, calls, ours, theirs), way in product(rows, WAYS):
            calls.go(way)
            for kind, run in (theirs if way in ("torch", "enabled") else ours).items():
                with fuseline.enabled() if way == "enabled" else nullcontext():
                    took = block(run, device)
                best[name, kind, way] = min(took, best.get((name, kind, way), took))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    if isinstance(why := host.module(), str):
        parser.exit(2, f"host_calls: calls go through Python alone: {why}\n")
    torch.set_num_threads(1)
    best = measure(options.device, options.rounds)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(
        f"us a call on the host ({name}), torch {torch.__version__}, Python "
        f"{platform.python_version()}; x {ROWS} x {COLUMNS} float32; fastest of\n"
        f"{options.rounds} blocks of {CALLS} calls, all in turn\n"
    )
    print(f"| | | {' | '.join(WAYS)} |\n|---|---|{'---:|' * len(WAYS)}")
    for op, kind in product(OPERATORS, KINDS):
        row = [f"{best[op, kind, way]:.2f}" for way in WAYS]
        print(f"| {op} | {kind} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
