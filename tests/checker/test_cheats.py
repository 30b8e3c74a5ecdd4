"""Each cheat is caught while it is measured, for its own reason; what is honest is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from checker.cheats import CHEATS

from fuselab import runner
from fuselab.model import Group, Measurement
from fuselab.worker import process

FILE = Path(__file__).with_name("cheats.py")


@pytest.fixture(scope="module")
def worker():
    with runner.Worker(process.main, "cpu", timeout=60) as started:
        yield started


def measured(worker: runner.Worker, name: str, impls: tuple[str, ...]) -> dict[str, Measurement]:
    place = (name, "256x2048", "float32", "fwd", "contiguous", "cpu")
    (step,) = runner.run([Group(*place, impls, str(FILE), precision="quick")], worker)
    return {m.cell.impl: m for m in step.measurements}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_caught_for_its_reason(worker: runner.Worker, name: str) -> None:
    _, status, reason = CHEATS[name]
    found = measured(worker, name, (name, "eager"))
    assert str(found[name].status) == status, found[name].reason
    assert reason in found[name].reason
    assert found["eager"].status.has_number, found["eager"].reason


def test_a_compile_cell_that_is_eager_is_caught(worker: runner.Worker) -> None:
    found = measured(worker, "never_compiles", ("eager", "compile"))["compile"]
    assert not found.status.has_number
    assert "compile" in found.reason or "graph" in found.reason
