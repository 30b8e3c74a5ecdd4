"""One child process that counts: started, heard, and ended with all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from fuselab import caches
from fuselab.counters import Task

CHILD = "fuselab.worker.child"
LOADED = "loaded"  # the file beside the request that says so
POLL_S = 0.02
PR_SET_PDEATHSIG = 1  # of linux/prctl.h

Answer = dict[str, Any]


class ChildError(RuntimeError):
    """The child gave no answer; the text says why, in one line."""


class Child:
    """A child that is loaded and waits to be asked; what it has to load is in no measurement.

    prefix: the program, with its options, that the child runs under.
    """

    def __init__(
        self,
        mode: str,
        tasks: Sequence[Task],
        *,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fuselab-")
        files = (Path(self._folder.name) / name for name in ("request", LOADED, "answer"))
        request, self._loaded, self._answer = files
        request.write_text(json.dumps([asdict(task) for task in tasks]))
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", CHILD, mode, str(request), str(self._answer)],
            env={**os.environ, **caches.variables(), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )

    def load(self, seconds: float) -> None:
        """Wait until it is loaded; one that ends or is late is left to `answers`."""
        deadline = monotonic() + seconds
        while not self._loaded.exists() and self._process.poll() is None and monotonic() < deadline:
            sleep(POLL_S)

    def answers(self, seconds: float) -> list[Answer]:
        """Let it go on, and return its answers: values by name, or "error"."""
        try:
            # It goes on at the end of its input.
            output, _ = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            raise ChildError(f"no answer within {seconds:g} s") from late
        finally:
            self._end()
        if not self._answer.is_file():
            line = (output.strip().splitlines() or [""])[-1].strip()
            raise ChildError(f"the child ended with exit code {self._process.returncode}: {line}")
        found: list[Answer] = json.loads(self._answer.read_text())
        return found

    def _end(self) -> None:
        # The group outlives its leader where a tool in between, or a compiler, was left behind.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()


def _end_with_parent() -> None:
    """Have the kernel kill this process when the lab dies; a new session hides it from signals."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def ask(
    mode: str,
    tasks: Sequence[Task],
    seconds: float,
    *,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> list[Answer]:
    """Run one child over the tasks and return its answers."""
    with Child(mode, tasks, prefix=prefix, env=env) as child:
        return child.answers(seconds)


def answers(
    mode: str, tasks: Sequence[Task], seconds: float, env: dict[str, str] | None = None
) -> list[Answer]:
    """Return the answers of one child over the tasks; where it dies, of one child each."""
    try:
        return ask(mode, tasks, seconds * len(tasks), env=env)
    except ChildError as error:
        if len(tasks) == 1:
            return [{"error": str(error)}]
        return [answer for task in tasks for answer in answers(mode, [task], seconds, env)]
