"""A process of the lab's own, asked once: a question in JSON, answers in lines of JSON, a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def ask(
    module: str, question: object, seconds: float, env: Mapping[str, str] | None = None
) -> tuple[list[Any], str]:
    """Return what `python -m module` answered, and why nothing came after that.

    Its standard output goes to standard error. `env` is added to the environment.
    """
    # Kineto notes each profile on stderr.
    variables = {"KINETO_LOG_LEVEL": "6", **os.environ, **(env or {})}
    with tempfile.TemporaryDirectory() as folder:
        asked, said = Path(folder) / "question", Path(folder) / "answers"
        asked.write_text(json.dumps(question))
        said.touch()
        command = [sys.executable, "-m", module, str(asked), str(said)]
        try:
            done = subprocess.run(
                command, env=variables, stdout=sys.stderr, timeout=seconds, check=False
            )
            why = f"its process ended with code {done.returncode}"
        except subprocess.TimeoutExpired:
            why = f"not done after {seconds:g} s (--timeout)"
        *lines, _ = said.read_text().split("\n")  # the last may be half a line
    return [json.loads(line) for line in lines], why


def question() -> Any:
    """Return, in the process, what it was asked."""
    return json.loads(Path(sys.argv[1]).read_text())


def answer(said: object) -> None:
    """Add an answer, in the process."""
    with Path(sys.argv[2]).open("a") as file:
        file.write(json.dumps(said) + "\n")


def told(error: Exception) -> str:
    """Return one line of what was raised."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
