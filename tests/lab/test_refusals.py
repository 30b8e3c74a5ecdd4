"""What cannot be measured is refused before anything is timed or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuselab.command_line.cli import command
from fuselab.commands.measuring import run as run_module

ABSENT = """
from dataclasses import replace
import sys; sys.path.insert(0, {folder!r})
from fuseline.testing import Implementation
from toy_ops import SWISH as swish, right
absent = Implementation("absent", right, unavailable=lambda device: "it is on holiday")
SPEC = replace(swish, name="toy", implementations=(*swish.implementations, absent))
del swish
"""


@pytest.mark.parametrize("verb", [["run"], ["profile", "--case", "small"]])
def test_an_implementation_that_the_device_cannot_run(
    verb: list[str], tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    file, out = tmp_path / "absent_ops.py", tmp_path / "out"
    file.write_text(ABSENT.format(folder=str(Path(__file__).parent)))
    monkeypatch.setattr(run_module, "measure", lambda *_: pytest.fail("measured"))
    asked = [verb[0], str(file), *verb[1:], "--impl", "absent", "--device", "cpu"]
    assert command([*asked, "--out", str(out)]) == 2
    assert "nothing to measure on cpu: absent: it is on holiday" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "verb",
    [
        ["explain", "mlp_block"],
        ["trace", "x + 1"],
        ["hlo", "softmax"],
        ["compile-bench", "softmax"],
        ["train-bench"],
        ["candidates", "softmax"],
        ["internals"],
        ["profile", "softmax", "--impl", "eager", "--case", "7x1"],
        ["run", "softmax"],
    ],
    ids=lambda verb: verb[0],
)
def test_a_folder_that_cannot_be_written(verb: list[str], tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("jax")
    taken = tmp_path / "file"
    taken.write_text("")
    before = set(tmp_path.rglob("*"))
    assert command([*verb, "--out", str(taken / "inside")]) in (2, 3)
    said = capsys.readouterr()
    assert str(taken) in said.err
    assert not said.out
    assert set(tmp_path.rglob("*")) == before
