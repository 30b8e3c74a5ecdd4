"""Counters against kernels whose bytes, FLOPs, instructions and number are known, on a GPU.

    python tools/known_counts.py [GIB]

Kernels of the lab's own over tensors of GIB (default 2), counted by ncu as `fuselab run --metrics
all` counts: bytes within 5 %, FLOPs and instructions within 2 %, numbers of kernels exact. About a
minute on an H200. This file is its own list of operators.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fuselab.counters import Counts, Task, ncu
from fuselab.model import Group
from fuselab.timers.cupti import CuptiTimer
from fuseline.core import native
from fuseline.testing import Case, Implementation, Inputs, OpSpec

GIB = "KNOWN_COUNTS_GIB"
LENGTH = int(float(os.environ.get(GIB, "2")) * (1 << 28))
THREADS, ROUNDS = 132 * 2048, 4096
# SASS of fma_kernel for sm_90 (nvcc 13.0): 262 instructions a round, 256 of them FFMA; 48 around.
A_ROUND, AROUND, FLOPS_A_ROUND, FLOPS_AROUND = 262, 48, 512, 8
BYTES, WORK = 0.05, 0.02
CALLS = 3


def copy(a: Tensor) -> Tensor:
    out = torch.empty_like(a)
    torch.ops.fuselab.copy(a, out)
    return out


def bulk_copy(a: Tensor) -> Tensor:
    out = torch.empty_like(a)
    torch.ops.fuselab.bulk_copy(a, out)
    return out


def read(a: Tensor) -> Tensor:
    out = a.new_empty(4)
    torch.ops.fuselab.read(a, out)
    return out


def fma(a: Tensor) -> Tensor:
    out = a.new_empty(THREADS)
    torch.ops.fuselab.fma(out, ROUNDS)
    return out


def three(a: Tensor) -> Tensor:
    return copy(copy(copy(a)))


ROW = LENGTH * 4
KNOWN: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "copy": {"dram_read_bytes": (ROW, BYTES), "dram_write_bytes": (ROW, BYTES),
             "load_sectors": (ROW / 32, BYTES), "store_sectors": (ROW / 32, BYTES)},
    "bulk_copy": {"dram_read_bytes": (ROW, BYTES), "dram_write_bytes": (ROW, BYTES),
                  "load_sectors": (ROW / 32, BYTES), "store_sectors": (ROW / 32, BYTES)},
    "read": {"dram_read_bytes": (ROW, BYTES), "load_sectors": (ROW / 32, BYTES)},
    "three": {"dram_read_bytes": (3 * ROW, BYTES), "dram_write_bytes": (3 * ROW, BYTES)},
    "fma": {"measured_flops": (THREADS * (ROUNDS * FLOPS_A_ROUND + FLOPS_AROUND), WORK),
            "instructions": (THREADS / 32 * (ROUNDS * A_ROUND + AROUND), WORK)},
}  # fmt: skip
KERNELS = {"copy": 1, "bulk_copy": 1, "read": 1, "fma": 1, "three": 3}


def make_inputs(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    return {"a": torch.rand(LENGTH, dtype=dtype, device=device, generator=generator)}


SPEC = OpSpec(
    name="known",
    formula="bytes, FLOPs and kernels that are known",
    reference=copy,
    implementations=tuple(
        Implementation(fn.__name__, fn) for fn in (copy, bulk_copy, read, fma, three)
    ),
    make_inputs=make_inputs,
    cases=(Case("large", {}),),
    dtypes=(torch.float32,),
    differentiable=(),
)


def main() -> int:
    """Print each count beside what is known; 1 if one is off."""
    if len(sys.argv) > 1:
        # The children read this file again.
        os.environ[GIB] = sys.argv[1]
        os.execv(sys.executable, [sys.executable, __file__])
    if why := native.status().why_not("cuda"):
        sys.exit(f"known_counts: {why}")
    place = ("known", "large", "float32", "fwd", "contiguous", "cuda:0")
    group = Group(*place, tuple(KNOWN), source=__file__)
    tasks = [Task(group, name) for name in KNOWN]
    found: list[Counts] = [{} for _ in tasks]
    for counter in ncu.NCU:
        for counts, more in zip(found, counter.count(tasks, 120), strict=True):
            counts |= more
    print(f"tensors of {ROW / (1 << 30):g} GiB; {torch.cuda.get_device_name()}")
    print(f"{'kernel':<10} {'count':<18} {'known':>16} {'counted':>16} {'off':>8}  ")
    right = [_judge(name, counts) for name, counts in zip(KNOWN, found, strict=True)]
    right.append(_kernels())
    return 0 if all(right) else 1


def _judge(name: str, counts: Counts) -> bool:
    right = True
    for what, (known, margin) in KNOWN[name].items():
        value = counts[what].value
        if value is None:
            print(f"{name:<10} {what:<18} {known:>16.0f}  {counts[what].unavailable}")
            right = False
            continue
        off = value / known - 1
        verdict = "ok" if abs(off) <= margin else f"MORE THAN {margin:.0%}"
        right &= verdict == "ok"
        print(f"{name:<10} {what:<18} {known:>16.0f} {value:>16.0f} {off:>+8.2%}  {verdict}")
    return right


def _kernels() -> bool:
    """Compare the number of kernels that CUPTI sees in a call."""
    a = torch.rand(1 << 20, device="cuda:0")
    functions: Mapping[str, Any] = {i.name: i.fn for i in SPEC.implementations}
    with CuptiTimer() as timer:
        for name in KNOWN:
            timer.block(name, [lambda fn=functions[name]: fn(a)] * CALLS)
    right = True
    for name, reading in timer.readings().items():
        seen = sum(reading.kernels.values())
        right &= seen == KERNELS[name] and reading.steady
        print(f"{name:<10} {'kernels':<18} {KERNELS[name]:>16} {seen:>16}")
    return right


if __name__ == "__main__":
    sys.exit(main())
