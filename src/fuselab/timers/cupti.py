"""Kernel time on a GPU: CUPTI's device events, read through torch.profiler."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from time import sleep
from types import TracebackType
from typing import Any

import torch
from torch._C._autograd import DeviceType

from fuselab.timers import NONE, Call, Reading, Timer, TimerError

# torch.cuda._sleep launches a kernel of this name that touches no memory: one before and one
# after each call mark in the stream of device events what belongs to the call.
MARKER = "spin_kernel"
NAME_LENGTH = 160
DETACHING_MS = 50

Event = tuple[str, float]


class CuptiTimer(Timer):
    """Sum of the durations of the kernels, copies and fills of each call, in us.

    One profiler window serves a whole sweep, because opening one costs about 20 ms.
    """

    name = "cupti"

    def __init__(self) -> None:
        super().__init__()
        self._labels: list[str] = []
        self._calls: list[list[Event]] = []
        self._profiler: Any = None

    def __enter__(self) -> Timer:
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self._profiler.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._profiler.__exit__(kind, error, trace)
        if error is None:
            self._calls = split(device_events(self._profiler.profiler.kineto_results.events()))

    def block(
        self, label: str, calls: Sequence[Call], batch: int = 1, keep: Set[int] = NONE
    ) -> dict[int, object]:
        outputs: list[object] = []
        for call in calls:
            torch.cuda._sleep(1)
            # Outputs stay alive to the end of the block: each call writes to memory of its own,
            # which the call before has not left in the cache.
            outputs.append(call())
            torch.cuda._sleep(1)
        torch.cuda.synchronize()
        self._labels += [label] * len(calls)
        return {i: outputs[i] for i in keep}

    def readings(self) -> dict[str, Reading]:
        if len(self._calls) != len(self._labels):
            raise TimerError(
                f"CUPTI reported {len(self._calls)} calls of {len(self._labels)}: events were lost,"
                " or another profiler holds the device"
            )
        return {label: self._reading(label) for label in dict.fromkeys(self._labels)}

    @classmethod
    def release(cls) -> None:
        # Left attached, CUPTI doubles the host time of every later launch: F.rms_norm at
        # (4, 128, 32) 9 us before, 21 us after a window, 9.7 us with this (H200, 2026-11-20).
        # Kineto detaches in a thread of its own at one of the next calls of CUDA; a window opened
        # before that loses all its events.
        os.environ["TEARDOWN_CUPTI"] = "1"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
            torch.cuda.synchronize()
        for _ in range(DETACHING_MS):
            torch.cuda.synchronize()
            sleep(1e-3)
        del os.environ["TEARDOWN_CUPTI"]

    def _reading(self, label: str) -> Reading:
        calls = [c for own, c in zip(self._labels, self._calls, strict=True) if own == label]
        kernels = [Counter(name for name, _ in call) for call in calls]
        return Reading(
            samples_us=tuple(round(sum(us for _, us in call), 3) for call in calls),
            kernels=dict(kernels[-1]),
            steady=all(found == kernels[-1] for found in kernels),
        )


def device_events(events: Iterable[Any]) -> list[Event]:
    """Return (name, us) of everything that ran on the device, by start time."""
    found = [
        (event.start_ns(), event.name()[:NAME_LENGTH], event.duration_ns() / 1e3)
        for event in events
        if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
    ]
    return [(name, us) for _, name, us in sorted(found)]


def split(events: Iterable[Event]) -> list[list[Event]]:
    """Return the events of each call: those between an opening marker and the closing one."""
    calls: list[list[Event]] = []
    inside = False
    for name, us in events:
        if MARKER in name:
            inside = not inside
            if inside:
                calls.append([])
        elif inside:
            calls[-1].append((name, us))
    if inside:
        raise TimerError("CUPTI lost the last marker: the calls cannot be told apart")
    return calls
