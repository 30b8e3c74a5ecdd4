"""What a GPU says of itself beside the timing, and what no cold call can beat; NVML is played."""

from __future__ import annotations

import pytest
import torch

from fuselab import environment
from fuselab.model import Cell, Proof, Status
from fuselab.timers import Reading
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.measuring import limits, timing
from fuselab.worker.measuring.clocks import Clocks
from fuseline.core.specs.spec import Cost

GPU = torch.device("cuda")
# An H200: 6144 bits at 3201 MHz, 4.917e12 bytes a second.
ANSWERS = {
    "nvmlDeviceGetMemoryBusWidth": 6144,
    "nvmlDeviceGetMaxClockInfo": 3201,
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetTemperature": 40,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x24,
}


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "nvml_handle", lambda device: object())
    monkeypatch.setattr(environment, "ask_nvml", lambda call, *_: ANSWERS[call])
    monkeypatch.setattr(limits, "cache_bytes", lambda device: 60 << 20)


def test_clocks_note_each_block_and_what_held_it_back() -> None:
    clocks = Clocks(GPU)
    assert clocks.noted(Proof(), "x") == Proof()
    for _ in range(2):
        clocks.read("x")
    assert clocks.noted(Proof(launches=1), "x") == Proof(
        launches=1,
        sm_mhz=(1980, 1980),
        temperature_c=40,
        throttle=("power cap", "thermal slowdown"),
    )
    assert clocks.disturbance("x") == "the GPU reported thermal slowdown while it was timed"


@pytest.mark.parametrize(
    ("took_us", "nbytes", "cold", "timer", "refused"),
    [
        (100.0, 512 << 20, True, "cupti", True),
        (106.0, 512 << 20, True, "cupti", False),
        (100.0, 512 << 20, False, "cupti", False),
        (10.0, 200 << 20, True, "cupti", False),
        (10.0, 512 << 20, True, "host", False),
    ],
)
def test_nothing_cold_beats_the_datasheet(
    took_us: float, nbytes: int, cold: bool, timer: str, refused: bool
) -> None:
    cell = Cell("op", "mine", "fwd", "case", "float32", "contiguous", "cuda:0")
    trial = Trial(cell, lambda count, sets: [], Cost(0, 0), proof=Proof(cold=cold))
    timed = timing.Timing(timer, {"mine": Reading((took_us,), {})})
    peak = limits.peak_bandwidth(GPU)
    assert peak == pytest.approx(4.917e12, rel=1e-3)
    limits.refuse_impossible(trial, nbytes, timed, timing.Arena(GPU, 4, nbytes), peak)
    assert (trial.status is Status.INVALID) == refused
