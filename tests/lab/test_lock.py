"""Measurements on one device take turns, and a dead one keeps nobody waiting."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from fuselab import environment
from fuselab.machine import lock
from fuselab.machine.lock import device_lock
from fuselab.model import Group, Measurement, Status
from fuselab.planning.plan import ceiling_group
from fuselab.processes.caches import CacheError
from fuselab.storage.store import Store

HOLD = """
import sys
from fuselab.machine.lock import device_lock
with device_lock(sys.argv[1]):
    print("have", flush=True)
    {}
    sys.stdin.read()
"""
# What a run starts: a fork server, a worker that outlives its parent, a compiler.
CHILDREN = """
    import multiprocessing, subprocess, time
    process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(60,))
    process.start()
    tool = subprocess.Popen(["sleep", "60"])
    print(process.pid, tool.pid, flush=True)
"""


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(lock.FOLDER)
    return tmp_path / "fuselab"


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, *words], text=True, **pipes) as started:
        try:
            yield started
        finally:
            started.kill()


def holder(device: str = "cpu", extra: str = "") -> Any:
    return process("-c", HOLD.format(extra.strip()), device)


def test_the_second_waits_for_the_first_and_says_so_once() -> None:
    with holder() as first:
        assert first.stdout.readline() == "have\n"
        with holder() as second:
            said = second.stderr.readline()
            assert said.startswith(f"waiting for cpu: process {first.pid} measures on it, since 2")
            time.sleep(0.2)
            assert second.poll() is None
            first.stdin.close()
            assert second.stdout.readline() == "have\n"
            second.stdin.close()
            assert second.stderr.read() == ""


def test_a_killed_holder_frees_the_device_though_its_children_live() -> None:
    with holder(extra=CHILDREN) as first:
        first.stdout.readline()
        children = [int(word) for word in first.stdout.readline().split()]
        try:
            first.kill()
            first.wait()
            with holder() as second:
                assert second.stdout.readline() == "have\n"
            for child in children:
                os.kill(child, 0)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)


def test_another_device_is_free(capsys: pytest.CaptureFixture[str]) -> None:
    with device_lock("cpu"), device_lock("cuda:98"), device_lock("cuda:99"):
        pass
    with device_lock("cpu"):
        assert capsys.readouterr().err == ""


def test_the_lock_is_a_file_of_our_own_in_a_folder_of_our_own(base: Path) -> None:
    with device_lock("cpu"):
        (file,) = base.glob("*.lock")
        assert file.stat().st_mode & 0o777 == 0o600
        assert f"process {os.getpid()} " in file.read_text()
    file.unlink()
    file.symlink_to(base / "elsewhere")
    with pytest.raises(OSError), device_lock("cpu"):
        pass
    base.chmod(0o755)
    with pytest.raises(CacheError, match="mode 0755"), device_lock("cpu"):
        pass


def test_a_file_system_without_locks_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with device_lock("cpu"):
        assert "cpu is not locked: [Errno 37] No locks available" in capsys.readouterr().err


class Driver:
    """A CUDA driver with two GPUs, numbered the other way round by CUDA_VISIBLE_DEVICES."""

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, number: Any, index: int) -> int:
        visible = [int(word) for word in os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")]
        if index >= len(visible):
            return 101
        number._obj.value = visible[index]
        return 0

    def cuDeviceGetUuid_v2(self, found: Any, number: ctypes.c_int) -> int:
        found._obj[15] = number.value + 1
        return 0


def test_a_gpu_has_one_lock_whatever_its_number(
    monkeypatch: pytest.MonkeyPatch, base: Path
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    with device_lock("cuda:0"), device_lock("cuda:1"):
        pass
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with device_lock("cuda:1"), device_lock("cuda"):
        pass
    first, second = sorted(file.name for file in base.glob("*.lock"))
    assert first == "GPU-00000000-0000-0000-0000-000000000001.lock"
    assert second == "GPU-00000000-0000-0000-0000-000000000002.lock"
    assert lock._uuid(2) == ""


@pytest.mark.gpu
def test_the_uuid_is_that_of_torch_and_asking_does_not_disturb_it() -> None:
    for index in range(torch.cuda.device_count()):
        uuid = torch.cuda.get_device_properties(index).uuid
        assert lock._uuid(index) == f"GPU-{uuid}"
    code = "from fuselab.machine.lock import _uuid; _uuid(0); import torch; torch.rand(1).cuda()"
    subprocess.run([sys.executable, "-c", code], check=True)


GROUP = ("swish", "small", "float32", "fwd", "contiguous", "cpu", ("eager", "ceiling"))


def store(out: Path, *groups: Group) -> None:
    with Store.open(out) as opened:
        opened.set_environment({})
        for group in groups:
            figures = {"timer": "wall", "samples_us": (1e6,) * 5, "precision": "standard"}
            cells = [Measurement(c, Status.OK, code=group.code, **figures) for c in group.cells]
            opened.write(group, cells)


def asked(toy: str, out: Path) -> list[str]:
    words = ["-m", "fuselab", "run", toy, "--out", str(out), "--device", "cpu", "--impl", "eager"]
    return [*words, "--dtype", "fp32", "--direction", "fwd", "--case", "small"]


def test_a_run_that_waits_can_be_interrupted(toy: str, tmp_path: Path) -> None:
    with device_lock("cpu"), process(*asked(toy, tmp_path / "run")) as run:
        said = iter(run.stderr.readline, "")
        assert any(line.startswith(f"waiting for cpu: process {os.getpid()} ") for line in said)
        run.send_signal(signal.SIGINT)
        rest = run.stderr.read()
        assert run.wait() == 130
        assert rest.strip() == "interrupted; the same command goes on from here"


def test_a_run_looks_again_once_the_device_is_free_and_needs_none_for_what_it_has(
    toy: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    code = environment.code("swish", toy)
    group = Group(*GROUP, source=toy, code=code)
    words = asked(toy, out)
    with ExitStack() as held, ExitStack() as started:
        held.enter_context(device_lock("cpu"))
        run = started.enter_context(process(*words))
        said = iter(run.stderr.readline, "")
        assert any(line.startswith("waiting for cpu") for line in said)
        store(out, ceiling_group("cpu"), group)
        # The lock is still held: only a run that has all it wants can end.
        again = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        assert (again.returncode, "waiting" in again.stderr) == (0, False), again.stderr
        held.close()
        assert run.wait(60) == 0
        assert "[1/" not in run.stderr.read()
