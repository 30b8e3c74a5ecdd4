"""The process of one implementation under `--isolate`: it knows neither clock nor checks.

It shares the memory of inputs and results with the worker, makes the calls it is asked for and
says when they are done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fuselab.timers import Call
from fuselab.worker import baselines, specs
from fuselab.worker.protocol import describe, synchronize
from fuseline.core.spec import Inputs
from fuseline.testing import accuracy

Slots = list[tuple[Tensor, ...]]


@dataclass(frozen=True)
class Desk:
    """What the worker hands over: input sets, output gradients or None, and where results go.

    impl: "" for the empty one, which copies results that it has and computes nothing.
    """

    source: str
    op: str
    impl: str
    device: str
    inputs: list[Inputs]
    dys: list[tuple[Tensor, ...] | None]
    results: Slots


def main(pipe: Connection) -> None:
    """Answer ("prepare", order) and ("go",) with ("done",) or ("error", unsupported, text)."""
    desk: Desk = pipe.recv()
    device = torch.device(desk.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        call_on = _empty(desk) if not desk.impl else _implementation(desk, device)
    except Exception as error:
        pipe.send(("error", isinstance(error, baselines.Unsupported), describe(error)))
        return
    pipe.send(("done",))
    calls: list[Call] = []
    while True:
        try:
            request, *order = pipe.recv()
        except EOFError:
            return
        try:
            if request == "prepare":
                calls = [call_on(i) for i in order[0]]
            else:
                for call, into in zip(calls, desk.results, strict=False):
                    _hand_in(call(), into)
            synchronize(device)
        except (Exception, SystemExit) as error:
            pipe.send(("error", False, describe(error)))
        else:
            pipe.send(("done",))


def _implementation(desk: Desk, device: torch.device) -> Callable[[int], Call]:
    spec = specs.load(desk.source)[desk.op]
    fn = baselines.make(spec, desk.impl, device.type)
    baselines.refuse(spec, desk.impl, desk.inputs[0])
    torch.set_grad_enabled(desk.dys[0] is not None)

    def call_on(i: int) -> Call:
        inputs, dys = desk.inputs[i], desk.dys[i]
        if dys is None:
            return lambda: fn(**inputs)
        leaves = {n: inputs[n].detach().requires_grad_() for n in _names(spec, inputs)}
        ys = accuracy.as_tuple(fn(**{**inputs, **leaves}))
        live = [(y, dy) for y, dy in zip(ys, dys, strict=True) if y.requires_grad]
        outputs, seeds = [y for y, _ in live], [dy for _, dy in live]
        wanted = list(leaves.values())
        return lambda: torch.autograd.grad(outputs, wanted, seeds, allow_unused=True)

    return call_on


def _names(spec: Any, inputs: Inputs) -> tuple[str, ...]:
    return accuracy.gradient_names(spec, inputs)


def _empty(desk: Desk) -> Callable[[int], Call]:
    own = [tuple(torch.ones_like(t) for t in slot) for slot in desk.results]
    return lambda i: lambda: own[i]


def _hand_in(output: Any, into: tuple[Tensor, ...]) -> None:
    """Copy the results of a call to the memory that the worker sees."""
    results = accuracy.as_tuple(output)
    for result, place in zip(results, into, strict=True):
        if result is None:
            continue
        if result.shape != place.shape or result.dtype != place.dtype:
            raise ValueError(
                f"a result of shape {tuple(result.shape)}, {result.dtype}, "
                f"expected {tuple(place.shape)}, {place.dtype}"
            )
        place.copy_(result)
