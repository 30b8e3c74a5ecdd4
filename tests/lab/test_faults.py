"""Implementations that crash, hang or lie cost their own cell; a killed run goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fuselab import metrics
from fuselab.store import Store

FAULTS = {
    "segfaults": ("crashed", "killed by signal 11 (SIGSEGV) during forward"),
    "aborts": ("crashed", "killed by signal 6 (SIGABRT) during forward"),
    "hangs": ("timeout", "no answer within 3 s during forward"),
    "raises": ("error", "ValueError: no such tile size (during forward)"),
    "starves": ("out_of_memory", "MemoryError: 64 TiB wanted (during forward)"),
    "exits": ("error", "SystemExit: 7 (during forward)"),
    "overwrites": ("invalid", "overwrote its input x"),
    "overwrites_later": ("invalid", "overwrote its input x while timed"),
    "returns_a_list": ("incorrect", "out0 is a str, expected a Tensor"),
    "returns_integers": ("incorrect", "out0 has shape (64, 33), torch.int64"),
    "returns_half": ("incorrect", "expected (64, 33), torch.float32"),
    "returns_more": ("incorrect", "out1 is one result more than the reference has"),
    "returns_none_later": ("incorrect", "wrong in the last timed call"),
    "resizes": ("invalid", "overwrote its input x"),
    "raises_strangely": ("error", "Strange (during forward)"),
    "sets_threads": ("invalid", "changed the settings of the process: threads: "),
    "wrong": ("incorrect", "out0: error"),
    "wrong_later": ("incorrect", "right at first, wrong in the last timed call: out0: error"),
}
SOUND = ("eager", "right", "torchscript")


def impl_options(*names: str) -> list[str]:
    return [word for name in names for word in ("--impl", name)]


@pytest.fixture(scope="module")
def outcome(lab: Any, faulty: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = str(tmp_path_factory.mktemp("faults") / "run")
    done = lab(
        *("run", faulty, "--out", out, "--device", "cpu", "--dtype", "fp32", "--json"),
        *("--direction", "fwd", "--timeout", "3", *impl_options(*FAULTS, *SOUND)),
    )
    cells = json.loads(done.stdout)["cells"]
    return done.returncode, {cell["impl"]: cell for cell in cells if cell["op"] == "faulty"}


@pytest.mark.parametrize("impl", FAULTS)
def test_a_fault_costs_its_cell_and_says_why(outcome: Any, impl: str) -> None:
    cell = outcome[1][impl]
    status, reason = FAULTS[impl]
    assert cell["status"] == status
    assert reason in cell["reason"]
    assert cell["median_us"] is None
    assert cell["host_us"] is None


@pytest.mark.parametrize("impl", SOUND)
def test_the_others_are_measured(outcome: Any, impl: str) -> None:
    cell = outcome[1][impl]
    assert cell["status"] in ("ok", "noisy")
    assert cell["median_us"] > 0
    assert cell["eager_ratio"] is not None


def test_a_fault_of_ones_own_is_exit_1(outcome: Any) -> None:
    assert outcome[0] == 1


class Running:
    """A run of the sluggish operator: the ceiling, then two groups of about two seconds."""

    def __init__(self, file: str, out: Path, pid_file: Path) -> None:
        self.pid_file = pid_file
        self.command = [sys.executable, "-m", "fuselab", "run", file, "--out", str(out)]
        self.command += ["--device", "cpu", "--dtype", "fp32", *impl_options("slow", "eager")]
        self.process = subprocess.Popen(
            self.command,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TOY_PID_FILE": str(pid_file)},
        )

    def wait_for(self, text: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text in line:
                return
        pytest.fail(f"the run ended without {text!r}")

    def worker_is_gone(self) -> bool:
        stat = Path("/proc") / self.pid_file.read_text() / "stat"
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
            time.sleep(0.05)
        return False


@pytest.fixture
def running(sluggish: str, tmp_path: Path) -> Running:
    return Running(sluggish, tmp_path / "run", tmp_path / "pid")


def stored(out: Path) -> dict[tuple[str, ...], float]:
    with Store.open_readonly(out) as store:
        cells = metrics.records(store.measurements())
    place = ("op", "impl", "direction", "case", "dtype")
    return {tuple(cell[name] for name in place): cell["median_us"] for cell in cells}


def test_a_killed_run_loses_its_worker_and_resumes(running: Running, tmp_path: Path) -> None:
    running.wait_for("sluggish/fwd/small/float32")
    running.process.send_signal(signal.SIGKILL)
    running.process.wait()
    assert running.worker_is_gone()

    before = stored(tmp_path / "run")
    assert ("sluggish", "slow", "fwd", "small", "float32") in before
    again = subprocess.run(running.command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert f"{len(before)} already in" in again.stderr
    after = stored(tmp_path / "run")
    assert before.items() <= after.items()
    assert len(after) == 2 + 2 * 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_exit_130_and_keeps_what_it_has(
    running: Running, tmp_path: Path, number: int
) -> None:
    running.wait_for("sluggish/fwd/small/float32")
    running.process.send_signal(number)
    _, stderr = running.process.communicate(timeout=30)
    assert running.process.returncode == 130
    assert "the same command goes on from here" in stderr
    assert "Traceback" not in stderr
    assert running.worker_is_gone()
    assert ("sluggish", "slow", "fwd", "small", "float32") in stored(tmp_path / "run")
