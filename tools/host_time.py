"""Host time of one call, ours against torch's own: paired rounds, median and 95% interval.

python tools/host_time.py [cuda|cpu]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter

import torch
import torch.nn.functional as F

import fuseline
from fuselab import stats

CALLS, ROUNDS = 300, 41


def _us(call: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(CALLS):
        call()
    return (perf_counter() - start) / CALLS * 1e6


def _report(name: str, ours: Callable[[], object], native: Callable[[], object]) -> None:
    for call in (ours, native):
        _us(call)
    rounds = []
    for turn in range(ROUNDS):
        pair = (ours, native) if turn % 2 else (native, ours)
        times = [_us(call) for call in pair]
        rounds.append(times if turn % 2 else times[::-1])
    mine, theirs, ratio = (
        stats.summary(values)
        for values in ([a for a, _ in rounds], [b for _, b in rounds], [a / b for a, b in rounds])
    )
    print(
        f"{name:22} ours {mine.median:6.2f} us  native {theirs.median:6.2f} us  "
        f"ratio {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
    )


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    x = torch.randn(4, 128, 32, device=device, dtype=torch.bfloat16)
    weight = torch.randn(32, device=device, dtype=torch.bfloat16)
    xg, wg = x.clone().requires_grad_(), weight.clone().requires_grad_()
    _report(
        "forward, no grad",
        lambda: fuseline.rms_norm(x, weight, 1e-6, device),
        lambda: F.rms_norm(x, (32,), weight, 1e-6),
    )
    _report(
        "forward, grad",
        lambda: fuseline.rms_norm(xg, wg, 1e-6, device),
        lambda: F.rms_norm(xg, (32,), wg, 1e-6),
    )


if __name__ == "__main__":
    main()
