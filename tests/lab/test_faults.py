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
import torch
from processes import gone
from torch.overrides import TorchFunctionMode

from fuselab.model import Measurement, Status
from fuselab.planning.plan import ceiling_group
from fuselab.records import metrics
from fuselab.storage.store import Store
from fuselab.worker import protocol
from fuselab.worker.protocol import Fatal

CPU = torch.device("cpu")
HERE = Path(__file__).parent
FULL = 1 << 16

FAULTS = {
    "segfaults": ("crashed", "killed by signal 11 (SIGSEGV) during forward"),
    "aborts": ("crashed", "killed by signal 6 (SIGABRT) during forward"),
    "hangs": ("timeout", "no answer within 3 s during forward, in hangs (faulty_ops.py:"),
    "hangs_in_python": ("timeout", "in hangs_in_python (faulty_ops.py:"),
    "hangs_later": ("timeout", "in hangs_in_python (faulty_ops.py:"),
    "kills_itself": ("crashed", "killed by signal 9 (SIGKILL), perhaps by the kernel"),
    "leaves": ("crashed", "process ended with exit code 3 during forward"),
    "interrupts": ("crashed", "process ended with exit code 1 during forward"),
    "recurses": ("error", "RecursionError: maximum recursion depth exceeded"),
    "allocates": ("out_of_memory", "can't allocate memory"),
    "raises": ("error", "ValueError: no such tile size (during forward)"),
    "starves": ("out_of_memory", "MemoryError: 64 TiB wanted (during forward)"),
    "exits": ("error", "SystemExit: 7 (during forward)"),
    "overwrites": ("invalid", "overwrote its input x"),
    "overwrites_later": ("invalid", "overwrote its input x while timed"),
    "returns_a_list": ("incorrect", "out0 is a str, expected a Tensor"),
    "returns_integers": ("incorrect", "out0 has shape (64, 33), torch.int64"),
    "returns_half": ("incorrect", "expected (64, 33), torch.float32"),
    "returns_more": ("incorrect", "out1 is one result more than the reference has"),
    "returns_none_later": ("incorrect", "wrong in a later call"),
    "resizes": ("invalid", "overwrote its input x"),
    "raises_strangely": ("error", "Strange (during forward)"),
    "sets_threads": ("invalid", "changed the settings of the process: threads: "),
    "raises_later": ("error", "no such tile size (during probe)"),
    "sets_threads_and_raises": ("error", "no such tile size (during forward); changed the"),
    "wrong": ("incorrect", "out0: error"),
    "wrong_later": ("incorrect", "right at first, wrong in a timed call: out0: error"),
}
GPU_FAULTS = {
    "reads_beyond": ("crashed", "CUDA error: an illegal memory access"),
    "reads_beyond_unawaited": ("crashed", "CUDA error: an illegal memory access"),
    "asserts": ("crashed", "CUDA error: device-side assert triggered"),
    "goes_on_after_an_assert": ("crashed", "CUDA error: device-side assert triggered"),
    "allocates": ("out_of_memory", "CUDA out of memory"),
    "hangs": ("timeout", "no answer within 5 s during forward, in "),
}
SOUND = ("eager", "right", "torchscript")


def prepared(out: Path) -> str:
    """Return the folder of a run that knows the ceiling: seconds of copying that no test needs."""
    group = ceiling_group("cpu")
    samples = {"timer": "wall", "samples_us": (1e6,) * 5}
    with Store.open(out) as store:
        store.set_environment({})
        store.write(group, [Measurement(cell, Status.OK, **samples) for cell in group.cells])
    return str(out)


def cells_of(done: subprocess.CompletedProcess[str], op: str) -> dict[str, dict[str, Any]]:
    cells = json.loads(done.stdout)["cells"]
    return {cell["impl"]: cell for cell in cells if cell["op"] == op}


def assert_measured(cell: dict[str, Any]) -> None:
    assert cell["status"] in ("ok", "noisy"), cell["reason"]
    assert cell["median_us"] > 0
    assert cell["impl"] == "ceiling" or cell["eager_ratio"] is not None


def impl_options(*names: str) -> list[str]:
    return [word for name in names for word in ("--impl", name)]


@pytest.fixture(scope="module")
def outcome(lab: Any, faulty: str, toy: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = prepared(tmp_path_factory.mktemp("faults") / "run")
    done = lab(
        *("run", faulty, toy, "--out", out, "--device", "cpu", "--dtype", "fp32", "--json"),
        *("--direction", "fwd", "--timeout", "3", *impl_options(*FAULTS, *SOUND)),
    )
    return done.returncode, cells_of(done, "faulty"), cells_of(done, "swish"), Path(out)


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
    assert_measured(outcome[1][impl])


def test_no_cell_is_missing_and_the_next_group_is_whole(outcome: Any) -> None:
    assert outcome[1].keys() == {*FAULTS, *SOUND, "ceiling"}
    assert outcome[2].keys() == {*SOUND, "ceiling"}
    for cell in outcome[2].values():
        assert_measured(cell)


def test_the_log_holds_the_stacks_of_what_hung(outcome: Any) -> None:
    log = (outcome[3] / "worker.log").read_text()
    assert "in hangs\n" in log
    assert "in hangs_in_python\n" in log


def test_a_fault_of_ones_own_is_exit_1(outcome: Any) -> None:
    assert outcome[0] == 1


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("raise RuntimeError('not here')", "error", "RuntimeError: not here"),
        ("os.abort()", "crashed", "killed by signal 6 (SIGABRT) during inputs"),
    ],
)
def test_a_file_that_the_worker_cannot_import_costs_its_own_groups(
    lab_here: Any, toy: str, tmp_path: Path, fault: str, status: str, reason: str
) -> None:
    file = tmp_path / "absent_ops.py"
    file.write_text(
        "import multiprocessing, os, sys\n"
        f"sys.path.insert(0, {str(Path(toy).parent)!r})\n"
        "from toy_ops import right, spec\n"
        f"if multiprocessing.parent_process(): {fault}\n"
        "SPEC = spec('absent', right)\n"
    )
    done = lab_here(
        *("run", str(file), toy, "--out", prepared(tmp_path / "run"), "--device", "cpu", "--json"),
        *("--dtype", "fp32", "--direction", "fwd", *impl_options("eager", "right")),
    )
    assert done.returncode == 1, done.stderr
    lost = cells_of(done, "absent")
    assert lost.keys() == {"eager", "right", "ceiling"}
    for cell in lost.values():
        assert cell["status"] == status
        assert reason in cell["reason"]
    for cell in cells_of(done, "swish").values():
        assert_measured(cell)


@pytest.mark.gpu
def test_a_fault_on_a_gpu_costs_its_cell_too(lab: Any, toy: str, tmp_path: Path) -> None:
    file = str(Path(toy).with_name("faulty_gpu_ops.py"))
    done = lab(
        *("run", file, toy, "--out", str(tmp_path / "run"), "--device", "cuda:0", "--json"),
        *("--dtype", "fp32", "--direction", "fwd", "--timeout", "5"),
        *impl_options(*GPU_FAULTS, *SOUND),
    )
    found = cells_of(done, "faulty")
    assert found.keys() == {*GPU_FAULTS, *SOUND, "ceiling"}
    for impl, (status, reason) in GPU_FAULTS.items():
        assert found[impl]["status"] == status, found[impl]["reason"]
        assert reason in found[impl]["reason"]
    for cell in (*(found[impl] for impl in SOUND), *cells_of(done, "swish").values()):
        assert_measured(cell)


@pytest.mark.gpu
def test_what_a_graph_cannot_capture_is_unsupported(lab: Any, toy: str, tmp_path: Path) -> None:
    file = str(Path(toy).with_name("faulty_gpu_ops.py"))
    done = lab(
        *("run", file, "--case", "small", "--dtype", "fp32", "--direction", "fwd", "--json"),
        *("--out", str(tmp_path / "run"), "--device", "cuda:0", "--timer", "graph"),
        *impl_options("synchronizes", "right", "eager"),
    )
    found = cells_of(done, "uncapturable")
    assert found["synchronizes"]["status"] == "unsupported"
    assert "a CUDA graph cannot capture it" in found["synchronizes"]["reason"]
    for impl in ("eager", "right"):
        assert_measured(found[impl])
        assert found[impl]["timer"] == "graph"


def test_a_healthy_device_passes_the_probe_and_an_error_stays_one() -> None:
    assert protocol.probe(CPU) == ""
    reason = protocol.judge(ValueError("no such tile size"), "mine", "forward", CPU)
    assert reason == "ValueError: no such tile size (during forward)"


class Miscounting(TorchFunctionMode):
    def __torch_function__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = fn(*args, **(kwargs or {}))
        return result + 1 if fn is torch.Tensor.sum else result


def test_an_error_that_leaves_the_device_wrong_ends_the_worker() -> None:
    with Miscounting(), pytest.raises(Fatal) as caught:
        protocol.judge(ValueError("x"), "mine", "forward", CPU)
    assert caught.value.impl == "mine"
    assert caught.value.status is Status.CRASHED
    assert "after it cpu adds up to 332833501, expected 332833500" in caught.value.reason


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: invalid configuration argument"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ],
)
def test_an_error_of_cuda_ends_the_worker_even_if_the_device_still_works(error: Any) -> None:
    with pytest.raises(Fatal) as caught:
        protocol.judge(error, "mine", "forward", CPU)
    assert caught.value.status is Status.ERROR


class Running:
    """A run in a process group of its own, as a terminal starts it."""

    def __init__(self, file: str, out: Path, pid_file: Path, *impls: str) -> None:
        self.pid_file = pid_file
        self.command = [sys.executable, "-m", "fuselab", "run", file, "--out", prepared(out)]
        self.command += ["--device", "cpu", "--dtype", "fp32", *impl_options(*impls)]
        self.process = subprocess.Popen(
            self.command,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TOY_PID_FILE": str(pid_file)},
            start_new_session=True,
        )

    def wait_for(self, text: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text in line:
                return
        pytest.fail(f"the run ended without {text!r}")

    def worker_is_gone(self) -> bool:
        return gone(int(self.pid_file.read_text()))


@pytest.fixture
def running(sluggish: str, tmp_path: Path) -> Running:
    """The sluggish operator: the ceiling, then two groups of about two seconds."""
    return Running(sluggish, tmp_path / "run", tmp_path / "pid", "slow", "eager")


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


def test_a_worker_that_holds_the_gil_ends_with_a_killed_run(faulty: str, tmp_path: Path) -> None:
    running = Running(faulty, tmp_path / "run", tmp_path / "pid", "hangs", "eager")
    deadline = time.monotonic() + 90
    while not (running.pid_file.exists() and running.pid_file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.process.kill()
    running.process.communicate()
    assert running.worker_is_gone()


def test_a_full_disk_is_exit_3_and_keeps_what_was_acknowledged(lab: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    # No file may grow further, which Python turns from a deadly signal into an error.
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({FULL}, {FULL})); "
    done = lab(
        *("run", str(HERE / "toy_ops.py"), "--out", prepared(out), "--device", "cpu"),
        *impl_options("eager", "right"),
        before=limit,
    )
    assert done.returncode == 3, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: {out / 'run.sqlite'}: cannot be read or written: ")
    said = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("[")]
    assert len(said) < 4
    with Store.open(out, create=False) as store:
        found = {m.cell.key for m in store.measurements()}
    assert {"swish/fwd/small/float32/contiguous/cpu"} <= set(said)
    assert len(found) == 2 + 3 * len(said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_exit_130_and_keeps_what_it_has(
    running: Running, tmp_path: Path, number: int
) -> None:
    running.wait_for("sluggish/fwd/small/float32")
    if number == signal.SIGINT:
        os.killpg(running.process.pid, number)  # a terminal sends Ctrl-C to all of them
    else:
        running.process.send_signal(number)
    _, stderr = running.process.communicate(timeout=30)
    assert running.process.returncode == 130
    assert "the same command goes on from here" in stderr
    assert "Traceback" not in stderr
    assert running.worker_is_gone()
    assert ("sluggish", "slow", "fwd", "small", "float32") in stored(tmp_path / "run")
