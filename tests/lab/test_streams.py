"""Standard streams: closed, full, gone, or of few characters; and an interruption."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fuselab.command_line.streams import CLOSED_PIPE

FUSELAB = (sys.executable, "-m", "fuselab")
NO_TORCH = ("explain", "--list")
QUICK = (("list", "softmax"), ("--help",), NO_TORCH)
INTERRUPTED = 130


def shell(redirection: str, *verb: str) -> subprocess.CompletedProcess[bytes]:
    line = f'"$@" {redirection}'
    command = ["bash", "-c", line, "bash", *FUSELAB, *verb]
    return subprocess.run(command, capture_output=True, check=False, timeout=120)


def closed_pipe() -> int:
    """Return an end to write to of a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    return write


def wait_until(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def catches(pid: int, number: signal.Signals) -> bool:
    """Say whether a process has a handler for a signal: before main() it has none for SIGTERM."""
    (mask,) = re.findall(
        r"^SigCgt:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("verb", QUICK, ids="-".join)
def test_a_closed_pipe_is_no_failure(verb: tuple[str, ...]) -> None:
    pipe = closed_pipe()
    done = subprocess.run([*FUSELAB, *verb], stdout=pipe, stderr=subprocess.PIPE, check=False)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (CLOSED_PIPE, b"")


def test_neither_is_that_of_the_errors() -> None:
    pipe = closed_pipe()
    done = subprocess.run([*FUSELAB, "list", "nope"], stderr=pipe, check=False)
    os.close(pipe)
    assert done.returncode == 2  # that was wrong, whoever hears of it


@pytest.mark.parametrize("verb", QUICK, ids="-".join)
def test_a_full_disk_is_exit_3_in_one_line(verb: tuple[str, ...]) -> None:
    done = shell(">/dev/full", *verb)
    assert done.returncode == 3
    assert done.stderr.decode().splitlines() == ["error: [Errno 28] No space left on device"]


# With all of them closed torch, too, is loaded: what it opens then has their numbers.
@pytest.mark.parametrize(
    ("redirection", "verb"),
    [*((r, NO_TORCH) for r in (">&-", "2>&-", ">&- 2>&-")), ("<&- >&- 2>&-", QUICK[0])],
)
def test_closed_streams_take_nothing(redirection: str, verb: tuple[str, ...]) -> None:
    done = shell(redirection, *verb)
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) == (redirection == "2>&-")


@pytest.mark.parametrize("verb", [*QUICK, ("list", "no-such-√")], ids="-".join)
def test_a_terminal_of_few_characters(verb: tuple[str, ...]) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*FUSELAB, *verb], capture_output=True, env=env, check=False)
    assert done.returncode == (2 if verb[-1] == "no-such-√" else 0), done.stderr
    assert b"Traceback" not in done.stderr


def test_a_locale_of_ascii() -> None:  # of explain: test_explain
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([*FUSELAB, "list"], capture_output=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


WAITING = """
import sys, time
from fuselab.processes import child
child.question(), child.answer("started")
time.sleep(60)
"""
ASKING = """
import sys, click
from fuselab.command_line import cli
from fuselab.processes import child
cli.cli.commands["ask"] = click.Command("ask", callback=lambda: child.ask("waiting", None, 60))
sys.exit(cli.command(["ask"]))
"""


def test_an_interruption_is_the_commands_alone(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(
        f"from pathlib import Path; Path({str(tmp_path / 'ready')!r}).touch()\n{WAITING}"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", ASKING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    ) as process:
        wait_until((tmp_path / "ready").exists, process)
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said.split()) == (INTERRUPTED, ["interrupted"])


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 3.0])
@pytest.mark.parametrize(
    "verb",
    [
        ("explain", "attention_pytorch"),
        ("check", "softmax"),
        ("compile-bench", "softmax"),
        ("doctor",),
    ],
    ids=lambda verb: verb[0],
)
def test_verbs_end_at_an_interruption(verb: tuple[str, ...], seconds: float) -> None:
    with subprocess.Popen(
        [*FUSELAB, *verb],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        wait_until(lambda: catches(process.pid, signal.SIGTERM), process)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    # Python ends itself by the signal, which a shell calls 130 too, if that came inside an exec().
    assert process.returncode in (INTERRUPTED, -signal.SIGINT)
    assert "Traceback" not in said
