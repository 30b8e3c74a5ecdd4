"""Kernel time on a GPU: CUPTI's device events, read through torch's profiler."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import sleep
from types import TracebackType
from typing import Any

import torch
from torch._C._autograd import DeviceType

from fuselab.timers import Call, Keep, Reading, Timer, TimerError, offer_all

# torch.cuda._sleep launches a kernel of this name that touches no memory: one before and one
# after each call mark in the stream of device events what belongs to the call.
MARKER = "spin_kernel"
NAME_LENGTH = 160
DETACHING_MS = 50


@dataclass(frozen=True)
class Event:
    """Something that ran on the device: where, and from when to when in ns."""

    name: str
    begin: int
    end: int
    stream: int = 0


@dataclass
class Span:
    """What ran from a call's opening marker on; `joined` if all of it before the closing one."""

    events: list[Event]
    joined: bool = True

    @property
    def us(self) -> float:
        return round(sum(event.end - event.begin for event in self.events) / 1e3, 3)

    @property
    def kernels(self) -> Counter[str]:
        return Counter(event.name for event in self.events)


class CuptiTimer(Timer):
    """Sum of the durations of the kernels, copies and fills of each call, in us.

    One profiler window serves a whole sweep, because one costs about 0.1 s.
    """

    name = "cupti"

    def __init__(self) -> None:
        super().__init__()
        self._labels: list[str] = []
        self._spans: list[Span] = []
        self._profiler: Any = None

    def __enter__(self) -> Timer:
        self._profiler = _window()
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
            self._spans = split(device_events(self._profiler.kineto_results.events()))

    def block(
        self, label: str, calls: Sequence[Call], batch: int = 1, keep: Keep | None = None
    ) -> None:
        outputs: list[object] = []
        for call in calls:
            torch.cuda._sleep(1)
            # Outputs stay alive to the end of the block: each call writes to memory of its own,
            # which the call before has not left in the cache.
            outputs.append(call())
            torch.cuda._sleep(1)
        torch.cuda.synchronize()
        self._labels += [label] * len(calls)
        offer_all(keep, outputs)

    def readings(self) -> dict[str, Reading]:
        if len(self._spans) != len(self._labels):
            raise TimerError(
                f"CUPTI reported {len(self._spans)} calls of {len(self._labels)}: events were lost,"
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
        with _window():
            torch.cuda.synchronize()
        for _ in range(DETACHING_MS):
            torch.cuda.synchronize()
            sleep(1e-3)
        del os.environ["TEARDOWN_CUPTI"]

    def _reading(self, label: str) -> Reading:
        spans = [span for own, span in zip(self._labels, self._spans, strict=True) if own == label]
        kernels = spans[-1].kernels
        return Reading(
            samples_us=tuple(span.us for span in spans),
            kernels=dict(kernels),
            steady=all(span.kernels == kernels for span in spans),
            joined=all(span.joined for span in spans),
        )


def _window() -> Any:
    # What is below torch.profiler: that warns at a second window, or makes a tree of all events,
    # which took 0.7 s a sweep of 700 calls.
    return torch.autograd.profiler.profile(use_cpu=False, use_device="cuda", use_kineto=True)


def device_events(events: Iterable[Any]) -> list[Event]:
    """Return everything that ran on the device, by start time."""
    found = [
        Event(
            event.name()[:NAME_LENGTH],
            event.start_ns(),
            event.start_ns() + event.duration_ns(),
            event.device_resource_id(),
        )
        for event in events
        if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
    ]
    return sorted(found, key=lambda event: event.begin)


def split(events: Iterable[Event]) -> list[Span]:
    """Return what belongs to each call: what begins between its markers.

    Work on another stream that nobody waited for may begin or end after the closing marker.
    """
    spans: list[Span] = []
    inside, home = False, None
    for event in events:
        if MARKER in event.name and home in (None, event.stream):
            inside, home = not inside, event.stream
            if inside:
                spans.append(Span([]))
            else:
                spans[-1].joined &= all(own.end <= event.begin for own in spans[-1].events)
        elif inside:
            spans[-1].events.append(event)
        elif spans and event.stream != home:
            spans[-1].joined = False
    if inside:
        raise TimerError("CUPTI lost the last marker: the calls cannot be told apart")
    return spans
