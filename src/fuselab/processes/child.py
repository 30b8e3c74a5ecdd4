"""A process of the lab's own, asked once: a question in JSON, answers in lines of JSON, a time."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process in a session of its own; `options` are Popen's.

    A terminal's Ctrl-C is for this process alone, which ends the other and all that it started.
    """
    return subprocess.Popen(command, start_new_session=True, preexec_fn=_end_with_parent, **options)


@contextlib.contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process as `start` does, and end it with the block, however that ends."""
    process = None
    try:
        with _interruptions_held():
            process = start(command, **options)
        yield process
    finally:
        if process:
            end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """End a process of `start` and all that it started, at once."""
    # The group outlives its leader where a tool in between, or a compiler, was left behind.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_with_parent() -> None:
    """Have the kernel kill this process when the lab dies; a new session hides it from signals."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def _interruptions_held() -> Iterator[None]:
    """Let an interruption wait for the end of the block: Popen, interrupted after its fork, is
    lost together with the number of the process."""
    if current_thread() is not main_thread():  # which alone hears of one
        yield
        return
    heard: list[int] = []
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(number, lambda n, _: heard.append(n)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        for came in heard:
            signal.raise_signal(came)


def ask(
    module: str, question: object, seconds: float, env: Mapping[str, str] | None = None
) -> tuple[list[Any], str]:
    """Return what `python -m module` answered, and why nothing came after that.

    Its standard output goes to standard error. `env` is added to the environment.
    """
    # Kineto notes each profile on stderr; Inductor reads its own UTF-8 in the locale's encoding.
    variables = {"KINETO_LOG_LEVEL": "6", **os.environ, "PYTHONUTF8": "1", **(env or {})}
    with tempfile.TemporaryDirectory() as folder:
        asked, said = Path(folder) / "question", Path(folder) / "answers"
        asked.write_text(json.dumps(question), encoding="utf-8")
        said.touch()
        command = [sys.executable, "-m", module, str(asked), str(said)]
        with running(command, env=variables, stdout=sys.stderr) as process:
            try:
                why = f"its process ended with code {process.wait(seconds)}"
            except subprocess.TimeoutExpired:
                why = f"not done after {seconds:g} s (--timeout)"
        *lines, _ = said.read_text(encoding="utf-8").split("\n")  # the last may be half a line
    return [json.loads(line) for line in lines], why


def question() -> Any:
    """Return, in the process, what it was asked."""
    return json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


def answer(said: object) -> None:
    """Add an answer, in the process."""
    answering()(said)


def answering() -> Callable[[object], None]:
    """Return what adds answers, in a process that then changes its own arguments."""
    path = Path(sys.argv[2]).absolute()

    def add(said: object) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")

    return add


def told(error: Exception) -> str:
    """Return one line of what was raised."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
