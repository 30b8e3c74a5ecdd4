"""Has two processes compile all subjects, one after the other, with the same caches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuselab import caches
from fuselab.compiling.record import Row, row
from fuselab.explain.record import mode_of


def bench(subjects: Sequence[str], device: str, seconds: float) -> list[Row]:
    """Return a row a subject; both processes end after so many seconds."""
    with caches.fresh() as env:
        cold, why = _child("cold", subjects, device, env, seconds)
        done = [name for name in subjects if "modes" in cold.get(name, {})]
        warm, _ = _child("warm", done, device, env, seconds) if done else ({}, "")
    return [_row(name, cold.get(name, {"error": why}), warm.get(name, {})) for name in subjects]


def _child(
    which: str, subjects: Sequence[str], device: str, env: dict[str, str], seconds: float
) -> tuple[dict[str, dict[str, Any]], str]:
    """Return what was said of each subject, and why nothing of the others."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        command = [sys.executable, "-m", "fuselab.compiling.child", which, device]
        command += [str(answer), *subjects]
        try:
            done = subprocess.run(
                command, env={**os.environ, **env}, stdout=sys.stderr, timeout=seconds, check=False
            )
            why = f"its process ended with code {done.returncode}"
        except subprocess.TimeoutExpired:
            why = f"not reached after {seconds:g} s (--timeout)"
        lines = answer.read_text().splitlines() if answer.exists() else []
    found = [json.loads(line) for line in lines]
    return {said["subject"]: said for said in found}, why


def _row(name: str, cold: dict[str, Any], warm: dict[str, Any]) -> Row:
    if "modes" not in cold:
        return Row(name, error=cold["error"])
    eager, compiled = map(mode_of, cold["modes"])
    return row(name, eager, compiled, cold["first_s"], warm.get("first_s"))
