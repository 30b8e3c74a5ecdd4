"""Bars that compare two or more calls directly, in interleaved rounds: medians with 95% intervals.

python tools/paired.py host [cuda|cpu]   host time of a small call, ours against torch's own
python tools/paired.py cpu               run time on the CPU against clone, eager and compile
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter

import torch
import torch.nn.functional as F

import fuseline
from fuselab import stats
from fuseline.ops.rms_norm import impl_eager

Calls = Mapping[str, Callable[[], object]]


def rounds(
    title: str,
    calls: Calls,
    count: int,
    repeats: int,
    around: Mapping[str, Callable[[], AbstractContextManager[None]]] | None = None,
) -> None:
    """Prints the median of each call and of its ratio to the first, over `count` rounds.

    around: what a call's repetitions are done in.
    """
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}

    def us(name: str) -> float:
        with (around or {}).get(name, nullcontext)():
            return _us(calls[name], repeats)

    for name in names:
        us(name)
    for turn in range(count):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(us(name))
    print(title)
    for name in names:
        pairs = zip(times[names[0]], times[name], strict=True)
        own, ratio = stats.summary(times[name]), stats.summary([b / a for a, b in pairs])
        print(
            f"  {name:10} {own.median:10.2f} us   x {ratio.median:.3f} of {names[0]} "
            f"[{ratio.low:.3f}, {ratio.high:.3f}]"
        )


def _us(call: Callable[[], object], repeats: int) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(repeats):
        call()
    return (perf_counter() - start) / repeats * 1e6


def host(device: str) -> None:
    x = torch.randn(4, 128, 32, device=device, dtype=torch.bfloat16)
    weight = torch.randn(32, device=device, dtype=torch.bfloat16)
    what = f"host time, (4, 128, 32) bfloat16 on {device}"
    around = {"enabled": fuseline.enabled}
    for title, wants_grad in (("forward, no grad", False), ("forward, grad", True)):
        a, w = (t.clone().requires_grad_(wants_grad) for t in (x, weight))
        native = partial(F.rms_norm, a, (32,), w, 1e-6)
        ours = partial(fuseline.rms_norm, a, w, 1e-6, device)
        calls = {"native": native, "fuseline": ours, "enabled": native}
        rounds(f"{what}, {title}", calls, 41, 300, around)
    with fuseline.enabled():
        taken_over = native()
    ys = {"native": native(), "fuseline": ours(), "enabled": taken_over}
    back = {
        name: partial(torch.autograd.grad, y, (a, w), torch.ones_like(y), retain_graph=True)
        for name, y in ys.items()
    }
    rounds(f"{what}, backward", back, 41, 300, around)
    if device == "cuda":
        triton = partial(fuseline.rms_norm, x, weight, 1e-6, "triton")
        calls = {"x * x": lambda: x * x, "triton": triton}
        rounds(f"{what}, forward, no grad", calls, 41, 300)


def cpu() -> None:
    for shape in ((4, 512, 4096), (4, 512, 2048)):
        x, weight = torch.randn(shape), torch.randn(shape[-1])
        compiled = torch.compile(impl_eager.rms_norm, fullgraph=True, dynamic=False)
        calls: Calls = {
            "fuseline": lambda x=x, w=weight: fuseline.rms_norm(x, w, 1e-6, "cpu"),
            "clone": x.clone,
            "eager": lambda x=x, w=weight: impl_eager.rms_norm(x, w, 1e-6),
            "compile": lambda x=x, w=weight, f=compiled: f(x, w, 1e-6),
        }
        with torch.no_grad():
            rounds(f"{shape} float32 on cpu, forward", calls, 31, 3)
        xg, wg, dy = x.clone().requires_grad_(), weight.clone().requires_grad_(), torch.randn(shape)

        def both(f: Callable[..., torch.Tensor], x=xg, w=wg, dy=dy) -> Callable[[], object]:
            return lambda: torch.autograd.grad(f(x, w, 1e-6), (x, w), dy)

        calls = {
            "fuseline": both(lambda *a: fuseline.rms_norm(*a, "cpu")),
            "eager": both(impl_eager.rms_norm),
            "compile": both(torch.compile(impl_eager.rms_norm, fullgraph=True, dynamic=False)),
        }
        rounds(f"{shape} float32 on cpu, forward + backward", calls, 21, 2)


def main() -> None:
    if sys.argv[1:2] == ["host"]:
        host(sys.argv[2] if len(sys.argv) > 2 else "cuda")
    elif sys.argv[1:] == ["cpu"]:
        cpu()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
