"""RMSNorm's implementations beside each other; run.py builds what it needs and calls it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import rmsnorm_torch
import torch
import torch.nn.functional as F
from torch import Tensor
from ways import EPS, Function

import fuseline
from fuselab.machine.load import OtherLoad

WEEK12 = (8, 4096, 4096)
CPU_SHAPE = (4, 512, 1024)
ROUNDS = 15


def implementations(device: str) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    found = {
        "PyTorch": rmsnorm_torch.rms_norm,
        "torch.compile": torch.compile(rmsnorm_torch.rms_norm),
        "F.rms_norm": lambda x, w: F.rms_norm(x, w.shape, w, EPS),
        "C++" if device == "cpu" else "CUDA C++": lambda x, w: Function.apply(x, w, EPS),
        "fuseline": lambda x, w: fuseline.rms_norm(x, w, EPS),
    }
    if device == "cuda":
        import rmsnorm_triton

        found["Triton"] = rmsnorm_triton.rms_norm
    return found


def measure(device: str) -> dict[str, tuple[float, float]]:
    """Median milliseconds of forward and of backward, the implementations in turn."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shape = WEEK12 if device == "cuda" else CPU_SHAPE
    x = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    w = torch.randn(shape[-1], device=device, dtype=dtype, requires_grad=True)
    dy = torch.randn(shape, device=device, dtype=dtype)
    named = implementations(device)
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in named}
    for round_ in range(ROUNDS + 3):
        for name, call in named.items():
            y, fwd = _timed(lambda call=call: call(x, w), device)
            _, bwd = _timed(lambda y=y: torch.autograd.grad(y, (x, w), dy), device)
            if round_ >= 3:
                times[name][0].append(fwd)
                times[name][1].append(bwd)
    return {name: (_median(fwd), _median(bwd)) for name, (fwd, bwd) in times.items()}


def _timed(call: Callable[[], object], device: str) -> tuple[object, float]:
    if device == "cpu":
        begin = perf_counter()
        out = call()
        return out, 1e3 * (perf_counter() - begin)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    out = call()
    end.record()
    end.synchronize()
    return out, begin.elapsed_time(end)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def plot(times: dict[str, tuple[float, float]], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    names = list(times)
    for offset, (direction, shade) in enumerate((("forward", "#1d63c4"), ("backward", "#d0622f"))):
        places = [i + 0.4 * offset - 0.2 for i in range(len(names))]
        bars = axes.barh(
            places, [times[n][offset] for n in names], 0.38, color=shade, label=direction
        )
        axes.bar_label(bars, fmt="%.3f", padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("ms a call, less is better")
    axes.set_title(title, fontsize=10)
    axes.margins(x=0.12)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with OtherLoad(torch.get_num_threads() if device == "cpu" else 1) as load:
        times = measure(device)
    what = (
        f"{WEEK12} bfloat16, {torch.cuda.get_device_name()}"
        if device == "cuda"
        else f"{CPU_SHAPE} float32, CPU, {torch.get_num_threads()} threads"
    )
    noisy = f"; noisy: {load.disturbance}" if load.disturbance else ""
    title = f"RMSNorm {what}, torch {torch.__version__}{noisy}"
    options.out.mkdir(parents=True, exist_ok=True)
    plot(times, title, options.out / f"benchmark-{device}.svg")
    eager = times["PyTorch"][0]
    lines = [
        f"{title}; median of {ROUNDS}, in turn",
        "",
        "| implementation | forward, ms | backward, ms | forward, PyTorch / this |",
        "|---|---:|---:|---:|",
        *(f"| {n} | {f:.3f} | {b:.3f} | {eager / f:.2f} |" for n, (f, b) in times.items()),
    ]
    (options.out / f"benchmark-{device}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
