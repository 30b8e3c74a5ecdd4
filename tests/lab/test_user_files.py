"""A user's own file: what is refused, what is measured again, several at once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fuselab.worker.operators import specs

TEMPLATE = """
import torch
from dataclasses import replace
from fuseline.testing import Case, Implementation, OpSpec


def eager(x):
    return x * 2.0


def mine(x):
    return {formula}


def make_inputs(case, dtype, device, generator):
    return {{"x": torch.randn(case.args["n"], dtype=dtype, device=device, generator=generator)}}


SPEC = OpSpec(
    name={name!r}, reference=eager, make_inputs=make_inputs, differentiable=("x",),
    implementations=(Implementation("eager", eager, "eager"), Implementation({impl!r}, mine)),
    cases=(Case("a", {{"n": 100}}), *{more}),
)
{tail}
"""


def write(folder: Path, file: str = "mine.py", **fields: str) -> str:
    known = {"formula": "x + x", "name": "double", "impl": "mine", "more": "()", "tail": ""}
    path = folder / file
    path.write_text(TEMPLATE.format(**(known | fields)))
    return str(path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "ceiling"}, "the lab's own"),
        ({"impl": "compile"}, "a name that the lab gives its own"),
        ({"impl": "eager"}, "implementations: got two named 'eager'"),
        ({"impl": "a/b"}, "expected a text without '/'"),
        ({"more": "(Case('a', {}),)"}, "cases: got two named 'a'"),
        ({"more": "(Case(3, {}),)"}, "case 3: name: got 3, expected a text"),
        (
            {"more": "(Case('b', {}, 'quick'),)"},
            "suites: got 'quick' alone, expected a tuple, with a comma: ('quick',)",
        ),
        ({"tail": "import sys; sys.exit(0)"}, "cannot be imported: SystemExit"),
    ],
)
def test_names_that_would_mix_things_up_are_refused(
    tmp_path: Path, fields: dict[str, str], words: str
) -> None:
    with pytest.raises(specs.SpecError, match=re.escape(words)):
        specs.load(write(tmp_path, **fields))


def test_a_file_that_prints_leaves_the_json_alone(lab_here: Any, tmp_path: Path) -> None:
    done = lab_here("list", write(tmp_path, tail="print('hello')"), "--json")
    assert [row["op"] for row in json.loads(done.stdout)] == ["double"]


def test_a_changed_file_is_measured_again(lab_here: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    command = (
        *("--out", out, "--device", "cpu", "--impl", "eager", "--impl", "mine", "--json"),
        *("--precision", "quick"),
    )

    def run(*more: str, **fields: str) -> tuple[dict[str, str], str]:
        done = lab_here("run", write(tmp_path, **fields), *command, *more)
        cells = json.loads(done.stdout)["cells"]
        return {c["direction"]: c["status"] for c in cells if c["impl"] == "mine"}, done.stderr

    first, _ = run(formula="x * 2.1")
    assert first == {"fwd": "incorrect", "bwd": "incorrect"}
    mended, told = run(formula="x + x")
    assert set(mended.values()) <= {"ok", "noisy"}
    assert "what they measured has changed since" in told
    _, told = run(formula="x + x")
    assert ", 0 to measure" in told
    _, told = run("--fresh", formula="x + x")
    assert "0 already" in told


def test_filters_hold_for_several_operators_together(lab_here: Any, tmp_path: Path) -> None:
    file = write(tmp_path)
    out = str(tmp_path / "run")
    done = lab_here(
        *("run", "rms_norm", file, "--out", out, "--device", "cpu", "--json"),
        *("--case", "a", "--impl", "mine", "--direction", "bwd", "--precision", "quick"),
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout)["cells"]
    assert {(c["op"], c["direction"]) for c in cells if c["op"] != "ceiling"} == {("double", "bwd")}
    wrong = lab_here("run", "rms_norm", file, "--out", out, "--suite", "week12", "--case", "a")
    assert wrong.returncode == 2
    assert "no operator has suite week12 and case a together" in wrong.stderr
