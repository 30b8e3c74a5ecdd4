"""Has two processes compile the subjects, one with max-autotune off and one with it on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fuselab import caches
from fuselab.candidates.record import Tuned, from_record


def run(subjects: Sequence[str], device: str, seconds: float) -> list[Tuned]:
    """Return what was tried for each subject, off and on, by a process of so many seconds each."""
    off, on = (_child(subjects, device, which, seconds) for which in ("off", "on"))
    return [one for pair in zip(off, on, strict=True) for one in pair]


def _child(subjects: Sequence[str], device: str, autotune: str, seconds: float) -> list[Tuned]:
    with caches.fresh() as env, tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        command = [sys.executable, "-m", "fuselab.candidates.child", device, str(answer), autotune]
        try:
            done = subprocess.run(
                [*command, *subjects], env={**os.environ, **env}, stdout=sys.stderr,
                timeout=seconds, check=False,
            )  # fmt: skip
            why = f"its process ended with code {done.returncode}"
        except subprocess.TimeoutExpired:
            why = f"not reached after {seconds:g} s (--timeout)"
        lines = answer.read_text().splitlines() if answer.exists() else []
    found = {one.subject: one for one in map(from_record, map(json.loads, lines))}
    return [found.get(name, Tuned(name, autotune == "on", error=why)) for name in subjects]
