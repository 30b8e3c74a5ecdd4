"""linear_cross_entropy on a GPU beside its rivals: time and peak memory of forward and backward.

    python tools/losses.py

bf16, all gradients, ms on the host's clock to the end of what was queued: medians of rounds in
which all are called in turn. Rivals that are not installed are left out.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fuseline

SHAPES = ((8192, 4096, 128256), (8192, 4096, 32000), (8192, 768, 50257), (4096, 3584, 152064),
          (2048, 2048, 32000))  # fmt: skip
ROUNDS = 7
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def naive(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), target)


def liger(accumulated: torch.dtype | None) -> Loss:
    ops: Any = importlib.import_module("liger_kernel.ops")
    apply = ops.LigerFusedLinearCrossEntropyFunction.apply
    rest = (None, None, -100, 0.0, 0.0, "mean", None, False, accumulated)
    return lambda hidden, weight, target: apply(hidden, weight, target, *rest)[0]  # type: ignore[no-any-return]


def losses() -> dict[str, Loss]:
    found: dict[str, Loss] = {
        "eager": naive,
        "fuseline": fuseline.linear_cross_entropy,
        "compile": torch.compile(naive, dynamic=False),
    }
    makers: dict[str, Callable[[], Loss]] = {
        "liger, dweight in fp32": lambda: liger(torch.float32),
        "liger, dweight in bf16": lambda: liger(None),
        "cut-cross-entropy": lambda: (
            importlib.import_module("cut_cross_entropy").linear_cross_entropy
        ),
    }
    for name, make in makers.items():
        try:
            found[name] = make()
        except ImportError:
            print(f"{name}: not installed")
    return found


def measure(shape: tuple[int, int, int]) -> None:
    rows, columns, classes = shape
    hidden, weight = (
        torch.randn(n, columns, device="cuda", dtype=torch.bfloat16) for n in (rows, classes)
    )
    given = hidden.requires_grad_(), (weight * columns**-0.5).requires_grad_()
    target = torch.randint(classes, (rows,), device="cuda")

    def step(loss: Loss) -> float:
        hidden.grad = given[1].grad = None
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss(*given, target).backward()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)

    every, peaks = losses(), {}
    for name, loss in every.items():
        for _ in range(2):
            step(loss)
        hidden.grad = given[1].grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(loss)
        peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**30
    times = [[step(loss) for loss in every.values()] for _ in range(ROUNDS)]
    for name, of in zip(every, zip(*times, strict=True), strict=True):
        size = " x ".join(map(str, shape))
        print(f"| {size} | {name} | {statistics.median(of):.2f} | {peaks[name]:.2f} |", flush=True)


def main() -> None:
    print(torch.cuda.get_device_name(), torch.__version__)
    print("| rows x columns x classes | | ms | peak, GiB |\n|---|---|---:|---:|")
    for shape in SHAPES:
        measure(shape)


if __name__ == "__main__":
    main()
