"""Each cheat is caught while it is measured, for its own reason; what is honest is not."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from checker.cheats import ALL, BACKWARD_CHEATS, CHEATS, CPU_CHEATS, GPU_CHEATS, GPU_HONEST, HONEST

from fuselab import runner
from fuselab.model import Group, Measurement
from fuselab.worker import process

FILE = Path(__file__).with_name("cheats.py")


DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
ON_A_GPU = [pytest.param("cuda:0", name, marks=pytest.mark.gpu) for name in CHEATS | GPU_CHEATS]


@pytest.fixture(scope="module")
def workers():
    """Give the worker of a device."""
    with ExitStack() as stack:

        @cache
        def worker(device: str) -> runner.Worker:
            if device != "cpu" and not torch.cuda.is_available():
                pytest.fail("torch sees no GPU")
            return stack.enter_context(runner.Worker(process.main, device, timeout=60))

        yield worker


def measured(
    workers: Any, device: str, name: str, *impls: str, direction: str = "fwd"
) -> dict[str, Measurement]:
    place = (name, "256x2048", "float32", direction, "contiguous", device)
    (step,) = runner.run([Group(*place, impls, str(FILE), precision="quick")], workers(device))
    return {m.cell.impl: m for m in step.measurements}


@pytest.mark.parametrize(
    ("device", "name"), [*(("cpu", name) for name in CHEATS | CPU_CHEATS), *ON_A_GPU]
)
def test_a_cheat_is_caught_for_its_reason(workers: Any, device: str, name: str) -> None:
    _, status, reason = ALL[name]
    found = measured(workers, device, name, name, "eager")
    assert str(found[name].status) in status.split(), found[name].reason
    assert any(words in found[name].reason for words in reason.split("|")), found[name].reason
    assert found["eager"].status.has_number, found["eager"].reason


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", BACKWARD_CHEATS)
def test_a_backward_that_is_not_computed_is_caught(workers: Any, device: str, name: str) -> None:
    _, status, reason = ALL[name]
    found = measured(workers, device, name, name, "eager", direction="bwd")
    assert str(found[name].status) == status, found[name].reason
    assert reason in found[name].reason
    assert found["eager"].status.has_number, found["eager"].reason


HONEST_ON_A_GPU = [
    pytest.param("cuda:0", name, marks=pytest.mark.gpu) for name in HONEST | GPU_HONEST
]


@pytest.mark.parametrize(
    ("device", "name"), [*(("cpu", name) for name in HONEST), *HONEST_ON_A_GPU]
)
def test_what_is_honest_gets_a_time(workers: Any, device: str, name: str) -> None:
    found = measured(workers, device, name, name, "eager")
    assert found[name].status.has_number, found[name].reason


@pytest.mark.parametrize("device", DEVICES)
def test_a_compile_cell_that_is_eager_is_caught(workers: Any, device: str) -> None:
    found = measured(workers, device, "never_compiles", "eager", "compile")["compile"]
    assert not found.status.has_number
    assert "compile" in found.reason or "graph" in found.reason
