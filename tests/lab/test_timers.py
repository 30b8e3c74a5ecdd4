"""Timers: what belongs to which call, and when a reading must be refused."""

from __future__ import annotations

import time
from collections import namedtuple
from statistics import median

import pytest
import torch

from fuselab.timers import Keep, TimerError
from fuselab.timers.cupti import MARKER, CuptiTimer, Event, device_events, split
from fuselab.timers.host import HostTimer
from fuselab.timers.wall import WallTimer
from fuselab.worker.measuring.timing import TIMERS

SPIN = f"at::cuda::(anonymous namespace)::{MARKER}(long)"
US = {SPIN: 1, "a": 2, "b": 3, "other": 50}


def stream(*names: str) -> list[Event]:
    """Events one after the other, of the lengths in US."""
    events, now = [], 0
    for name in names:
        events.append(Event(name, now, now + US[name] * 1000))
        now = events[-1].end
    return events


def test_wall_reads_what_a_call_takes() -> None:
    timer, kept = WallTimer(), Keep(1)
    with timer:
        timer.block("wait", [lambda: time.sleep(0.01)] * 4 + [lambda: 7], keep=kept)
    samples = timer.readings()["wait"].samples_us
    assert kept.results == {0: None, 1: None, 2: None, 3: None, 4: 7}
    assert len(samples) == 5
    assert min(samples[:4]) >= 10_000
    assert median(samples[:4]) < 20_000


def test_wall_shares_a_sample_among_a_batch_and_calls_each_once() -> None:
    seen: list[int] = []
    timer, kept = WallTimer(), Keep(1)
    with timer:
        calls = [lambda i=i: seen.append(i) or i for i in range(10)]  # type: ignore[misc, func-returns-value]
        timer.block("many", calls, batch=4, keep=kept)
    assert seen == list(range(10))
    assert [index // 4 for index in kept.results] == [0, 1, 2]
    assert all(index == result for index, result in kept.results.items())
    assert len(timer.readings()["many"].samples_us) == 3


def test_split_gives_each_call_what_lies_between_its_markers() -> None:
    spans = split(
        stream("other", SPIN, "a", "b", SPIN, "other", SPIN, "a", SPIN, SPIN, SPIN, "other")
    )
    assert [[event.name for event in span.events] for span in spans] == [["a", "b"], ["a"], []]
    assert [span.us for span in spans] == [5, 2, 0]
    assert all(span.joined for span in spans)


def test_split_refuses_a_lost_marker() -> None:
    with pytest.raises(TimerError, match="lost the last marker"):
        split(stream(SPIN, "a", SPIN, SPIN, "b"))


@pytest.mark.parametrize(("begin", "end", "joined"), [(1, 3, True), (1, 9, False), (6, 7, False)])
def test_work_on_another_stream_must_be_over_when_the_call_is(
    begin: int, end: int, joined: bool
) -> None:
    opening, work, closing = stream(SPIN, "b", SPIN)
    elsewhere = Event("a", begin * 1000, end * 1000, stream=7)
    events = sorted([opening, work, elsewhere, closing], key=lambda event: event.begin)
    (span,) = split(events)
    assert span.joined is joined


def test_cupti_refuses_lost_calls_and_notes_unsteady_ones() -> None:
    timer = CuptiTimer()
    timer._labels = ["x", "y", "x"]
    timer._spans = split(stream(SPIN, "a", "b", SPIN, SPIN, "a", SPIN, SPIN, "a", SPIN))
    readings = timer.readings()
    assert readings["x"].samples_us == (5.0, 2.0)
    assert not readings["x"].steady
    assert readings["y"].steady
    assert readings["y"].kernels == {"a": 1}
    timer._spans.pop()
    with pytest.raises(TimerError, match="2 calls of 3"):
        timer.readings()


def test_device_events_are_sorted_and_leave_out_the_host_and_annotations() -> None:
    Fields = namedtuple("Fields", "start name us device note")

    class Kineto:
        def __init__(self, *values: object) -> None:
            self.e = Fields(*values)

        start_ns = lambda self: self.e.start  # noqa: E731
        name = lambda self: self.e.name  # noqa: E731
        duration_ns = lambda self: self.e.us * 1000  # noqa: E731
        device_type = lambda self: self.e.device  # noqa: E731
        is_user_annotation = lambda self: self.e.note  # noqa: E731
        device_resource_id = lambda self: 7  # noqa: E731

    cuda, cpu = torch._C._autograd.DeviceType.CUDA, torch._C._autograd.DeviceType.CPU
    events = [
        Kineto(30, "b", 3, cuda, False),
        Kineto(10, "cudaLaunchKernel", 9, cpu, False),
        Kineto(20, "a", 2, cuda, False),
        Kineto(20, "CompiledFunction", 40, cuda, True),
    ]
    assert device_events(events) == [Event("a", 20, 2020, 7), Event("b", 30, 3030, 7)]


@pytest.mark.gpu
def test_cupti_sees_the_kernels_of_each_call_and_no_others() -> None:
    source = torch.rand(1 << 26, device="cuda")
    out = torch.empty_like(source)
    half, into = source[: 1 << 25], out[: 1 << 25]
    timer = CuptiTimer()
    with timer:
        for _ in range(3):
            timer.block("whole", [lambda: out.copy_(source)] * 10)
            out.mul_(2)
            timer.block("half", [lambda: into.copy_(half)] * 10)
            timer.block("two", [lambda: torch.sin(torch.exp(half))] * 10)
    readings = timer.readings()
    assert [len(r.samples_us) for r in readings.values()] == [30, 30, 30]
    whole, part = (median(readings[name].samples_us) for name in ("whole", "half"))
    assert whole / part == pytest.approx(2, rel=0.1)
    assert sum(readings["two"].kernels.values()) == 2
    assert all(reading.steady for reading in readings.values())


@pytest.mark.gpu
def test_cupti_leaves_the_host_time_of_later_launches_alone() -> None:
    x = torch.randn(4096, device="cuda")

    def host_us() -> float:
        samples = []
        for _ in range(500):
            start = time.perf_counter_ns()
            torch.sin(x)
            samples.append((time.perf_counter_ns() - start) / 1e3)
        torch.cuda.synchronize()
        return median(samples)

    host_us()
    before = host_us()
    with CuptiTimer() as timer:
        timer.block("sin", [lambda: torch.sin(x)] * 20)
    timer.release()
    assert host_us() < 1.5 * before


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupti", "graph", "events"])
def test_the_timers_of_a_gpu_agree_on_long_kernels(name: str) -> None:
    source = torch.rand(1 << 27, device="cuda")
    out = torch.empty_like(source)
    read = {}
    for timer in (CuptiTimer(), TIMERS[name]()):
        with timer:
            for _ in range(3):
                with timer.preparing():
                    # No copy: as a node of a graph it is another engine's work, and slower.
                    calls = [lambda: torch.neg(source, out=out)] * 10
                timer.block("neg", calls)
        read[timer.name] = median(timer.readings()["neg"].samples_us)
    assert read[name] == pytest.approx(read["cupti"], rel=0.03)


@pytest.mark.gpu
def test_cupti_opens_window_after_window() -> None:
    x = torch.rand(4096, device="cuda")
    for _ in range(4):
        with CuptiTimer() as timer:
            timer.block("sin", [lambda: torch.sin(x)] * 20)
        assert len(timer.readings()["sin"].samples_us) == 20
    timer.release()
    with CuptiTimer() as timer:
        timer.block("sin", [lambda: torch.sin(x)] * 20)
    assert len(timer.readings()["sin"].samples_us) == 20


@pytest.mark.gpu
def test_host_time_does_not_wait_for_the_device() -> None:
    source = torch.rand(1 << 28, device="cuda")
    out = torch.empty_like(source)
    timer = HostTimer()
    with timer:
        timer.block("copy", [lambda: out.copy_(source)] * 20)
    assert median(timer.readings()["copy"].samples_us) < 100
