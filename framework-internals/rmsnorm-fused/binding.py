"""What a call costs by each way to bind; run.py builds what it needs and calls it."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

import torch
from ways import Way, ways

from fuselab.statistics.stats import summary

SHAPE = (4, 64)
ROUNDS, CALLS, WARM = 25, 200, 200
COLUMNS = ("without grad", "with grad", "with backward")


def cells(way: Way, device: str) -> dict[str, Callable[[], object]]:
    """The three calls of a row; a way without a gradient has only the first."""
    plain = [torch.randn(SHAPE, device=device), torch.randn(SHAPE[-1], device=device)]
    tracked = [t.clone().requires_grad_() for t in plain]
    dy = torch.randn(SHAPE, device=device)

    def backward() -> None:
        way.call(*tracked).backward(dy)
        tracked[0].grad = tracked[1].grad = None

    found: dict[str, Callable[[], object]] = {COLUMNS[0]: lambda: way.call(*plain)}
    if way.differentiable:
        found |= {COLUMNS[1]: lambda: way.call(*tracked), COLUMNS[2]: backward}
    return found


def measure(device: str, rounds: int = ROUNDS) -> list[dict[str, object]]:
    """Time of the host for a call in us: median of `rounds` blocks of calls, all ways in turn."""
    torch.set_num_threads(1)
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    rows = [(way, cells(way, device)) for way in ways(device)]
    samples: dict[tuple[str, str], list[float]] = {}
    for round_ in range(rounds + 1):
        for way, columns in rows:
            for column, call in columns.items():
                took = _block(call, sync, WARM if round_ == 0 else CALLS)
                if round_:
                    samples.setdefault((way.name, column), []).append(took)
    return [
        {"way": way.name, "kernel": way.kernel}
        | {c: _figure(samples.get((way.name, c), [])) for c in COLUMNS}
        for way, _ in rows
    ]


def _block(call: Callable[[], object], sync: Callable[[], None], calls: int) -> float:
    """Microseconds of the host a call; on a GPU the queue is emptied before, and never full."""
    total = 0
    for _ in range(max(1, calls // 20)):
        sync()
        begin = perf_counter_ns()
        for _ in range(20):
            call()
        total += perf_counter_ns() - begin
    sync()
    return total / 1e3 / (20 * max(1, calls // 20))


def _figure(samples: list[float]) -> dict[str, float] | None:
    if not samples:
        return None
    s = summary(samples)
    return {"median": s.median, "low": s.low, "high": s.high}


def to_markdown(rows: list[dict[str, object]], device: str, rounds: int) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU"
    head = [
        f"us a call on the host, {device} ({name}), torch {torch.__version__}, Python "
        f"{platform.python_version()}; x {SHAPE[0]} x {SHAPE[1]} float32; median of {rounds} "
        f"blocks of {CALLS} calls with its 95 % interval, all ways in turn",
        "",
        f"| way | kernel | {' | '.join(COLUMNS)} |",
        f"|---|---|{'---:|' * len(COLUMNS)}",
    ]
    return "\n".join([*head, *map(_line, rows)]) + "\n"


def _line(row: dict[str, object]) -> str:
    def text(figure) -> str:
        if figure is None:
            return "no gradient"
        return f"{figure['median']:.2f} ({figure['low']:.2f}–{figure['high']:.2f})"

    return f"| {row['way']} | {row['kernel']} | {' | '.join(text(row[c]) for c in COLUMNS)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--device", choices=["cpu", "cuda"], default=None)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    rows = measure(device, options.rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"binding-{device}.json").write_text(json.dumps(rows, indent=1) + "\n")
    text = to_markdown(rows, device, options.rounds)
    (options.out / f"binding-{device}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
