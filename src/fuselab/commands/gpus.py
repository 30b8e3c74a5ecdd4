"""fuselab run --gpus: a part of a run on each GPU of this machine at once, then one run of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import torch

from fuselab import child
from fuselab.commands import merge
from fuselab.plan import PlanError

ALL = "all"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def run(words: Sequence[str], out: str, gpus: str) -> int:
    """Run `fuselab run WORDS` in a process for each GPU, with OUT/gpu-N as its folder, and merge
    their cells into OUT.

    Each measures the part of the cells that its place among the processes has, so that the same
    command goes on from where it stopped. Returns the gravest of their exit codes.
    """
    chosen = numbers(gpus, torch.cuda.device_count())
    parts = [str(Path(out) / f"gpu-{number}") for number in chosen]
    processes = [
        _start([*words, "--shard", f"{i}/{len(chosen)}", "--out", part], number)
        for i, (number, part) in enumerate(zip(chosen, parts, strict=True), 1)
    ]
    says = [Thread(target=_say, args=pair) for pair in zip(processes, chosen, strict=True)]
    for thread in says:
        thread.start()
    try:
        codes = [process.wait() for process in processes]
    except BaseException:
        for process in processes:
            process.send_signal(signal.SIGINT)  # each stores what it has
            process.wait()
        raise
    finally:
        for thread in says:
            thread.join()
    return merge.parts(out, parts, codes)


def numbers(text: str, count: int) -> list[int]:
    """Return the numbers of the GPUs that a text names: "all", or numbers with commas."""
    if text == ALL and count:
        return list(range(count))
    have = ", ".join(map(str, range(count))) or "none"
    found = text.split(",")
    if not all(one.isdecimal() and int(one) < count for one in found):
        raise PlanError(
            f"gpus: got {text!r}, expected {ALL} or numbers of GPUs with commas: {have}"
        )
    if len(set(map(int, found))) < len(found):
        raise PlanError(f"gpus: got {text!r}, expected each GPU once")
    return [int(one) for one in found]


def _start(words: Sequence[str], number: int) -> subprocess.Popen[str]:
    visible = os.environ.get(VISIBLE)
    name = visible.split(",")[number] if visible else str(number)
    return child.start(
        [sys.executable, "-m", "fuselab", "run", *words],
        env={**os.environ, VISIBLE: name},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _say(process: subprocess.Popen[str], number: int) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        print(f"gpu {number}: {line}", end="", file=sys.stderr, flush=True)
