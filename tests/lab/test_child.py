"""fuselab.processes.child: what a process answered before it ended, however it ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuselab.processes import child

ANSWERS = """
from fuselab.processes import child
for n in range(child.question()): child.answer({"n": n})
"""


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ("", "its process ended with code 0"),
        ("raise SystemExit(3)", "its process ended with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "its process ended with code -9"),
        ("import time; time.sleep(60)", "not done after 5 s (--timeout)"),
        ("import sys; open(sys.argv[2], 'a').write('{\"n\"')", "its process ended with code 0"),
    ],
)
def test_answers_stay(tmp_path: Path, then: str, why: str) -> None:
    (tmp_path / "asked.py").write_text(ANSWERS + then)
    answers = child.ask("asked", 3, 5, {"PYTHONPATH": str(tmp_path)})
    assert answers == ([{"n": 0}, {"n": 1}, {"n": 2}], why)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_of_the_start_leaves_no_process(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[subprocess.Popen[Any]] = []
    start = child.start

    def interrupted(command: list[str]) -> subprocess.Popen[Any]:
        signal.raise_signal(number)
        processes.append(start(command))
        return processes[0]

    monkeypatch.setattr(child, "start", interrupted)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            child.running([sys.executable, "-c", "import time; time.sleep(60)"]),
        ):
            pytest.fail("it was not raised")
        handler = signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert handler is signal.default_int_handler
    assert processes[0].returncode == -signal.SIGKILL
