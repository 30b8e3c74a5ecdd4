"""The process of one implementation under `--isolate`: it knows neither clock nor checks.

It shares the memory of inputs and results with the worker, makes the calls it is told to and
says when they are done.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fuselab.timers import Call
from fuselab.worker.implementations import baselines
from fuselab.worker.operators import specs
from fuselab.worker.protocol import describe, synchronize
from fuseline.core.specs.spec import Direction, Inputs
from fuseline.testing.oracle import accuracy

Slots = list[tuple[Tensor, ...]]


class Mismatch(Exception):
    """A result is not of the kind that the reference has; the text says how."""


@dataclass(frozen=True)
class Desk:
    """What the worker hands over: inputs and output gradients or None by slot, and places.

    impl: "" for the empty one, which copies a result that it has and computes nothing.
    """

    source: str
    op: str
    impl: str
    device: str
    inputs: list[Inputs]
    dys: list[tuple[Tensor, ...] | None]
    results: Slots


def main(pipe: Connection, desk: Desk) -> None:
    """Serve requests: (token, "load"), (token, "prepare", calls) and (token, "go", calls).

    An answer is JSON, which the worker reads without running anything: the token, what is wrong,
    and what torch's compiler did so far.
    """
    device = torch.device(desk.device)
    watch = baselines.CompileWatch()
    served = _Served(desk, device)
    while True:
        try:
            token, request, *arguments = pipe.recv()
        except EOFError:
            return
        fault = ("", "")
        try:
            with watch:
                getattr(served, request)(*arguments)
                synchronize(device)
        except (Exception, SystemExit) as error:
            fault = (_kind(error), describe(error))
        answer = {"token": token, "fault": fault, "graphs": watch.graphs, "breaks": watch.breaks}
        pipe.send_bytes(json.dumps(answer).encode())


def _kind(error: BaseException) -> str:
    if isinstance(error, baselines.Unsupported):
        return "unsupported"
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return "out_of_memory"
    return "incorrect" if isinstance(error, Mismatch) else "error"


class _Served:
    """What the requests do."""

    def __init__(self, desk: Desk, device: torch.device) -> None:
        self._desk, self._device = desk, device
        self._prepared: list[Call] = []
        self._open = ExitStack()  # as long as the process, which calls nothing else
        self._call_on: Callable[[int], Call] = lambda i: lambda: None

    def load(self) -> None:
        """Make the implementation."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        backward = self._desk.dys[0] is not None
        torch.set_grad_enabled(backward)
        impl = self._desk.impl
        self._open.enter_context(baselines.around(impl))
        self._call_on = _implementation(self._desk, self._device) if impl else _empty(self._desk)

    def prepare(self, calls: int) -> None:
        """Run the forward of so many backward calls."""
        self._prepared = [self._call_on(i) for i in range(calls)]

    def go(self, calls: int) -> None:
        """Make the calls on the first slots and hand in their results."""
        prepared, self._prepared = self._prepared, []
        for i in range(calls):
            call = prepared[i] if prepared else self._call_on(i)
            _hand_in(call(), self._desk.results[i])


def _implementation(desk: Desk, device: torch.device) -> Callable[[int], Call]:
    spec = specs.load(desk.source)[desk.op]
    fn = baselines.make(spec, desk.impl, device.type)
    direction: Direction = "fwd" if desk.dys[0] is None else "bwd"
    baselines.refuse(spec, desk.impl, desk.inputs[0], direction)

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
    # One for all slots: an implementation's newest result is in the cache when it is copied, too.
    own = tuple(torch.ones_like(t) for t in desk.results[0])
    return lambda i: lambda: own


def _hand_in(output: Any, into: tuple[Tensor, ...]) -> None:
    """Copy the results of a call to the memory that the worker sees."""
    results = accuracy.as_tuple(output)
    if len(results) != len(into):
        raise Mismatch(f"{len(results)} results, expected {len(into)}")
    for result, place in zip(results, into, strict=True):
        if result is None:
            place.zero_()
            continue
        if not isinstance(result, Tensor):
            raise Mismatch(f"a result is a {type(result).__name__}, expected a Tensor")
        if result.shape != place.shape or result.dtype != place.dtype:
            raise Mismatch(
                f"a result of shape {tuple(result.shape)}, {result.dtype}, "
                f"expected {tuple(place.shape)}, {place.dtype}"
            )
        place.copy_(result)
