"""Checks of what a call shares with the rest of the process: settings, threads, other graphs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from fuseline.testing import settings
from fuseline.testing.oracle.accuracy import gradient_names, make_dys
from fuseline.testing.report import Finding
from fuseline.testing.trial import Results, Trial, same_bits

THREADS = 4
UNLIKELY_SEED = 20_261_121


def global_state(trial: Trial) -> Iterator[Finding]:
    """Check that calls leave torch's settings and the random number generators as they were."""
    inputs = trial.inputs()
    dys = trial.dys(inputs) if gradient_names(trial.spec, inputs) else None
    cuda = [trial.device] if trial.device.type == "cuda" else []
    with torch.random.fork_rng(cuda):
        torch.manual_seed(UNLIKELY_SEED)
        before = settings.random_states(trial.device)
        trial.call(inputs)
        if dys is not None:
            trial.call(inputs, "bwd", dys)
        after = settings.random_states(trial.device)
    reason = settings.changes(before, after)
    yield trial.finding("global-state", reason, "random number generators")
    reason = settings.changes(trial.settings, settings.snapshot(trial.device))
    yield trial.finding("global-state", reason, "settings")


def threads(trial: Trial) -> Iterator[Finding]:
    """Check results when several threads call at once, each with inputs of its own."""
    mine = [trial.inputs(f"thread {i}") for i in range(THREADS)]

    def start() -> None:
        # A new thread has GPU 0 as its current one. What works from there is another question.
        if trial.device.index is not None:
            torch.cuda.set_device(trial.device)

    with ThreadPoolExecutor(THREADS, initializer=start) as pool:
        reasons = list(pool.map(trial.wrong_anywhere, mine))
    yield trial.finding("threads", next(filter(None, reasons), None), f"{THREADS} threads")


def graphs(trial: Trial) -> Iterator[Finding]:
    """Check that each graph remembers its call: after a later forward, and in a second backward."""
    first, second = trial.inputs(), trial.inputs("second")
    names = gradient_names(trial.spec, first)
    if not names:
        return
    outputs, leaves = trial.call_with_grad(first, names)
    kept = trial.call_with_grad(second, names)
    ys = tuple(outputs.values())
    dys = make_dys(ys, trial.generator("dys"))
    found: list[Results] = []
    for _ in range(2):
        asked = tuple(leaves.values())
        live = [(y, dy) for y, dy in zip(ys, dys, strict=True) if y.requires_grad]
        grads = torch.autograd.grad(
            [y for y, _ in live],
            asked,
            [dy for _, dy in live],
            allow_unused=True,
            retain_graph=True,
        )
        pairs = zip(names, grads, strict=True)
        found.append({n: g.clone() for n, g in pairs if g is not None})
    del kept
    reason = trial.why_wrong(found[0], first, "bwd", dys)
    yield trial.finding("graphs", reason, "backward after another forward")
    differing = [n for n in found[0] if not same_bits(found[0][n], found[1][n])]
    reason = f"{differing[0]}: the second backward gave other bits" if differing else None
    yield trial.finding("graphs", reason, "backward twice")
