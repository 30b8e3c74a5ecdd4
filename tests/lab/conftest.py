"""What the lab's tests share: a toy file, and the command line in a process of its own."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fuselab.command_line.cli import command

HERE = Path(__file__).parent
# So that child processes can import the toys by name.
sys.path.insert(0, str(HERE))

# A run in the background has Ctrl-C ignored, which all its children would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A run outside of the tests would keep them waiting.
os.environ["FUSELAB_LOCK_DIR"] = tempfile.mkdtemp(prefix="fuselab-locks-")
atexit.register(shutil.rmtree, os.environ["FUSELAB_LOCK_DIR"], ignore_errors=True)

# Inductor's work before its first kernel with an empty cache: it compiles for each kind of vectors
# that the processor may have, and its headers ahead. Tests of what the lab does with a compiler
# need neither, and twelve seconds less.
PLAIN = {"TORCHINDUCTOR_VEC_ISA_OK": "0", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}

Lab = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def toy() -> str:
    return str(HERE / "toy_ops.py")


@pytest.fixture(scope="session")
def faulty() -> str:
    return str(HERE / "faulty_ops.py")


@pytest.fixture(scope="session")
def sluggish() -> str:
    return str(HERE / "sluggish_ops.py")


@pytest.fixture(scope="session")
def lab() -> Lab:
    """Run `fuselab ...` and wait for it; `before` is Python to run first in its process."""

    def run(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fuselab", *arguments]
        if before:
            start = f"{before}import runpy; runpy.run_module('fuselab', run_name='__main__')"
            command = [sys.executable, "-c", start, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    return run


@pytest.fixture
def lab_here(capfd: pytest.CaptureFixture[str]) -> Lab:
    """Run `fuselab ...` in this process, where torch is loaded; its workers are its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        code = command(arguments)
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


@pytest.fixture
def plain_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Inductor in processes that the test starts make code without vectors."""
    import torch._inductor.config  # noqa: F401 - it reads the variables: not these, for this process

    for name, value in PLAIN.items():
        monkeypatch.setenv(name, value)
