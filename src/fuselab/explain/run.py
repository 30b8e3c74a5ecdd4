"""Has a child explain a function, in fresh private caches, within a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fuselab import caches
from fuselab.explain.record import Explanation, from_record
from fuselab.explain.target import locate
from fuselab.plan import PlanError


class ExplainError(RuntimeError):
    """The user's function could not be explained: it raised, crashed, or took too long."""


def run(text: str, device: str, seconds: float) -> Explanation:
    """Return the explanation of FILE.py:FUNCTION or of an example.

    Raises PlanError for what is no such function, ExplainError for one that fails.
    """
    file, name = locate(text)
    with caches.fresh() as env, tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "request", Path(folder) / "answer"
        question.write_text(json.dumps({"file": str(file), "name": name, "device": device}))
        command = [sys.executable, "-m", "fuselab.explain.child", str(question), str(answer)]
        try:
            done = subprocess.run(
                command, env={**os.environ, **env}, stdout=sys.stderr, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ExplainError(f"{text}: not done after {seconds:g} s (--timeout)") from error
        if not answer.exists():
            raise ExplainError(f"{text}: the process ended with code {done.returncode}")
        said = json.loads(answer.read_text())
    if "usage" in said:
        raise PlanError(said["usage"])
    if "failed" in said:
        raise ExplainError(f"{text}: {said['failed']}")
    return from_record(said["found"])
