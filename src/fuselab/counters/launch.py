"""One child process that counts: started, heard, and ended with all that it started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from fuselab.counters import Task
from fuselab.processes import caches, child

CHILD = "fuselab.worker.child"
LOADED = "loaded"  # the file beside the request that says so
POLL_S = 0.02

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
        self._ends = ExitStack()
        folder = self._ends.enter_context(tempfile.TemporaryDirectory(prefix="fuselab-"))
        files = (Path(folder) / name for name in ("request", LOADED, "answer"))
        request, self._loaded, self._answer = files
        request.write_text(json.dumps([asdict(task) for task in tasks]), encoding="utf-8")
        started = child.running(
            [*prefix, sys.executable, "-m", CHILD, mode, str(request), str(self._answer)],
            env={**os.environ, **caches.variables(), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        self._process = self._ends.enter_context(started)

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
            child.end(self._process)
        if not self._answer.is_file():
            line = (output.strip().splitlines() or [""])[-1].strip()
            raise ChildError(f"the child ended with exit code {self._process.returncode}: {line}")
        found: list[Answer] = json.loads(self._answer.read_text(encoding="utf-8"))
        return found

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()


def ask(
    mode: str,
    tasks: Sequence[Task],
    seconds: float,
    *,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> list[Answer]:
    """Run one child over the tasks and return its answers."""
    with Child(mode, tasks, prefix=prefix, env=env) as started:
        return started.answers(seconds)


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
