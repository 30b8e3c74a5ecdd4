"""fuselab.child: what a process answered before it ended, however it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuselab import child

ANSWERS = """
from fuselab import child
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
