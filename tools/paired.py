"""RMSNorm's calls compared directly, in interleaved rounds: medians with 95% intervals.

python tools/paired.py fwd|bwd DTYPE [SHAPE ...]
    run time on the CPU over that of torch.compile and, forward, of clone; without shapes (4x128x32)
    those of seed-rmsnorm. Ratios of the least times, which other work on the machine disturbs the
    least, then medians of the rounds' ratios
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from time import perf_counter

import torch
import torch._functorch.config as functorch
from torch import Tensor

import fuseline
from fuselab.report.sections.tables import geometric_mean
from fuselab.statistics import stats
from fuseline.core.specs import row_cases
from fuseline.ops.rms_norm import impl_eager

Norm = Callable[..., Tensor]
Calls = Mapping[str, Callable[[], object]]


SEED = [case.args["shape"] for case in row_cases.cases("seed") if "seed" in case.suites]
_ROUND_US, _CELL_US = 3e2, 6e5  # what a call's repetitions take, and a shape in all
_KEPT_BYTES = 31 << 20  # glibc's limit is 32 MiB
_COLD_BYTES = 1 << 27  # of inputs; more than a last-level cache


def interleaved(calls: Calls, count: int, repeats: int) -> dict[str, list[float]]:
    """us of each call in each of `count` rounds; every round begins with another call."""
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-1, count):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            us = _us(calls[name], repeats)
            if turn >= 0:  # the round before is for warming up
                times[name].append(us)
    return times


def _ratio(a: list[float], b: list[float]) -> str:
    """The median of a / b over the rounds, with its interval."""
    ratio = stats.summary([x / y for x, y in zip(a, b, strict=True)])
    return f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _us(call: Callable[[], object], repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        call()
    return (perf_counter() - start) / repeats * 1e6


def cpu(direction: str, dtype: torch.dtype, shapes: list[tuple[int, ...]]) -> None:
    functorch.donated_buffer = False  # a backward is called again and again on one graph
    # Once a large block was freed, glibc keeps what smaller outputs leave. Before, whether it does
    # depends on what else lies on the heap, and decides over a factor of two.
    torch.empty(_KEPT_BYTES, dtype=torch.uint8)
    threads = torch.get_num_threads()
    print(f"rms_norm {direction} {dtype}, {threads} threads, torch {torch.__version__}")
    gains = []
    for shape in shapes:
        calls = _cpu_calls(direction, dtype, shape)
        once = {name: min(us) for name, us in interleaved(calls, 3, 1).items()}
        repeats = max(1, round(_ROUND_US / once["fuseline"]))
        count = int(_CELL_US / repeats / sum(once.values()))
        times = interleaved(calls, min(max(count, 15), 101), repeats)
        ours = times.pop("fuseline")
        least = {name: min(ours) / min(other) for name, other in times.items()}
        ratios = "".join(
            f"   {least[name]:.3f} of {name}, {_ratio(ours, other)}"
            for name, other in times.items()
        )
        print(f"{'x'.join(map(str, shape)):14} {min(ours):10.1f} us{ratios}", flush=True)
        gains.append(1 / least["compile"])
    print(f"compile over ours, geometric mean of {len(gains)}: {geometric_mean(gains):.3f}")


def _cpu_calls(direction: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Calls:
    """Each call goes on to other inputs, which no cache holds any more."""
    torch._dynamo.reset()  # or the limit of recompilations is met
    compiled = torch.compile(impl_eager.rms_norm, fullgraph=True, dynamic=False)
    norms: dict[str, Norm] = {
        "fuseline": partial(fuseline.rms_norm, impl="cpu"),
        "compile": compiled,
    }
    if direction == "fwd":
        norms["clone"] = lambda x, weight, eps: x.clone()
    weight = torch.randn(shape[-1], dtype=dtype, requires_grad=direction == "bwd")
    sets = 1 + _COLD_BYTES // (math.prod(shape) * dtype.itemsize)
    xs = [torch.randn(shape, dtype=dtype, requires_grad=direction == "bwd") for _ in range(sets)]

    def call(norm: Norm, x: Tensor) -> Callable[[], object]:
        forward = partial(norm, x, weight, 1e-6)
        if direction == "fwd":
            return forward
        grads = partial(torch.autograd.grad, forward(), (x, weight), retain_graph=True)
        return partial(grads, torch.randn(shape, dtype=dtype))

    turn = cycle(range(sets))

    def on(norm: Norm) -> Callable[[], object]:
        calls = [call(norm, x) for x in xs]
        return lambda: calls[next(turn)]()

    return {name: on(norm) for name, norm in norms.items()}


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] not in ("fwd", "bwd"):
        sys.exit(__doc__)
    shapes = [tuple(map(int, shape.split("x"))) for shape in sys.argv[3:]]
    cpu(sys.argv[1], getattr(torch, sys.argv[2]), shapes or SEED)


if __name__ == "__main__":
    main()
