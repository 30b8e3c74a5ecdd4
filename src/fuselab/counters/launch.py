"""One child process that counts: started, heard, and ended with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuselab import caches
from fuselab.counters import Task

CHILD = "fuselab.worker.child"

Answer = dict[str, Any]


class ChildError(RuntimeError):
    """The child gave no answer; the text says why, in one line."""


def ask(
    mode: str,
    tasks: Sequence[Task],
    seconds: float,
    *,
    prefix: Sequence[str] = (),
    env: dict[str, str] | None = None,
) -> list[Answer]:
    """Run one child over the tasks and return its answers: values by name, or "error".

    prefix: the program, with its options, that the child runs under.
    """
    with tempfile.TemporaryDirectory(prefix="fuselab-") as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_text(json.dumps([asdict(task) for task in tasks]))
        words = [*prefix, sys.executable, "-m", CHILD, mode, str(request), str(answer)]
        code, output = _run(words, seconds, os.environ | caches.variables() | (env or {}))
        if not answer.is_file():
            lines = output.strip().splitlines() or [""]
            raise ChildError(f"the child ended with exit code {code}: {lines[-1].strip()}")
        answers: list[Answer] = json.loads(answer.read_text())
        return answers


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


def _run(words: Sequence[str], seconds: float, env: Mapping[str, str]) -> tuple[int, str]:
    process = subprocess.Popen(
        words,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as late:
        raise ChildError(f"no answer within {seconds:g} s") from late
    finally:
        # The group outlives its leader where a tool in between, or a compiler, was left behind.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode, output
