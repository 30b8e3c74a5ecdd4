"""A mistake in an OpSpec: one line with the user's own place, the field, and what was expected."""

# ruff: noqa: E501  the messages in the tables

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fuselab.commands.measuring.check import Verdict
from fuselab.worker.operators import specs

TEMPLATE = """import torch
from fuseline.testing import Case, ErrorCase, Implementation, OpSpec


def reference(x, w):
    return x * w


def mine(x, w):
    {body}


def make_inputs({arguments}):
    n = case.args["n"]
    {made}


SPEC = OpSpec(
    name="scale", reference=reference, make_inputs=make_inputs,
    implementations=(
        Implementation("eager", reference, {role}), Implementation("mine", mine),
    ),
    cases=(Case("a", {{"n": 33}}, ("quick",)),),
    {more}
)
"""
GOOD = {
    "body": "return x * w",
    "arguments": "case, dtype, device, generator",
    "made": 'return {"x": torch.randn(7, n, dtype=dtype), "w": torch.randn(n, dtype=dtype)}',
    "role": '"eager"',
    "more": 'differentiable=("x", "w"), row_inputs=("x",),',
}
SPEC_LINE = "mine.py:18: operator 'scale': "


def write(folder: Path, **fields: str) -> str:
    path = folder / "mine.py"
    path.write_text(TEMPLATE.format(**(GOOD | fields)))
    return str(path)


AT_ONCE = [
    ({"more": 'differentiable=("x", "wight"),'}, "differentiable: got 'wight', expected one of: x, w"),
    ({"more": 'row_inputs=("y",),'}, "row_inputs: got 'y', expected one of: x, w"),
    ({"more": 'relayout=("xs",),'}, "relayout: got 'xs', expected one of: x, w; did you mean 'x'?"),
    ({"more": 'differentiable="x",'}, "differentiable: got 'x' alone, expected a tuple, with a comma"),
    ({"more": 'dtypes=("float32",),'}, "dtypes: got 'float32' in it, expected torch.dtypes only"),
    ({"more": "dtypes=torch.float32,"}, "dtypes: got torch.dtype alone, expected a tuple"),
    ({"more": "budget=3,"}, "budget: got 3, expected a Budget"),
    ({"more": 'row_ndim="1",'}, "row_ndim: got '1', expected a int"),
    ({"more": "cost=lambda inputs: 3,"}, "cost: got a function (inputs), expected (inputs, direction)"),
    ({"more": "cost=7,"}, "cost: got 7, expected a function (inputs, direction)"),
    ({"arguments": "case, dtype"}, "make_inputs: got a function (case, dtype), expected (case, dtype, "),
    ({"more": "suite_dtypes={'quick': (torch.int8,)},"}, "suite_dtypes: quick: got 'torch.int8'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "words"), AT_ONCE, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_field_that_cannot_be_meant_is_named(
    tmp_path: Path, fields: dict[str, str], words: str
) -> None:
    with pytest.raises(specs.SpecError) as raised:
        specs.load(write(tmp_path, **fields))
    assert str(raised.value).startswith(SPEC_LINE + words)


def test_a_suite_that_no_case_has_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, more="suite_dtypes={'quik': (torch.float32,)},")
    with pytest.raises(specs.SpecError, match=r"suite_dtypes: got 'quik', .*did you mean 'quick'"):
        specs.load(file)


@pytest.mark.parametrize(
    ("fields", "line", "words"),
    [
        ({"role": '"base"'}, 21, "implementation 'eager': role: got 'base', expected one of: ours, "),
        ({"more": 'error_cases=(ErrorCase("e", print, "TypeError", ("x",)),)'}, 24,
         "error case 'e': error: got 'TypeError', expected a class of exceptions"),
        ({"more": "tuning=Case('b', 3),"}, 24, "case 'b': args: got 3, expected a dict"),
    ],
)  # fmt: skip
def test_parts_name_themselves(
    tmp_path: Path, fields: dict[str, str], line: int, words: str
) -> None:
    with pytest.raises(specs.SpecError) as raised:
        specs.load(write(tmp_path, **fields))
    assert str(raised.value).startswith(f"mine.py:{line}: {words}")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"more": "diferentiable=('x',),"}, "argument 'diferentiable' (mine.py:18); did you mean "
         "'differentiable'?"),
        ({"more": "row_ndim=1 contiguous=True,"}, "SyntaxError: invalid syntax. Perhaps you forgot a "
         "comma? (mine.py:24)"),
        ({"more": "budget=Budget(),"}, "NameError: name 'Budget' is not defined (mine.py:24)"),
        ({"more": ")\nimport no_such_module_at_all\n("}, "No module named 'no_such_module_at_all' "
         "(mine.py:25)"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_run_says_where(
    tmp_path: Path, fields: dict[str, str], words: str
) -> None:
    with pytest.raises(specs.SpecError, match=re.escape(words)) as raised:
        specs.load(write(tmp_path, **fields))
    assert "\n" not in str(raised.value)


def told(lab_here: Any, file: str) -> list[str]:
    """Return what check says of the file's implementations, without its progress."""
    done = lab_here("check", file, "--device", "cpu", "--level", "quick")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if not line.startswith("[")]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"made": "return torch.randn(n)"}, "make_inputs: got a Tensor from it, expected a dict"),
        ({"made": 'return {"x": torch.randn(n), "v": n}'}, "make_inputs: got 'v', expected a name that"
         " the reference takes: x, w"),
        ({"made": 'return {"x": torch.arange(n), "w": 2}'}, "differentiable: got 'x', a tensor of "
         "torch.int64, expected a floating tensor"),
        ({"made": "return {'x': case.args['m']}"}, "KeyError: 'm' (mine.py:15)"),
    ],
)  # fmt: skip
def test_what_only_the_inputs_show_is_said_once(
    tmp_path: Path, lab_here: Any, fields: dict[str, str], words: str
) -> None:
    (line,) = told(lab_here, write(tmp_path, **fields))
    assert line.startswith("scale eager, mine: ")
    assert words in line


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise RuntimeError('a\\nb')", "raised RuntimeError: a b (mine.py:10)"),
        (
            "return None",
            "raised TypeError: the result: got a NoneType, expected a tensor or a tuple",
        ),
        ("return [x, 3]", "raised TypeError: the result: got a int, expected a tensor or a tuple"),
    ],
)
def test_a_kernel_that_raises_is_told_once(
    tmp_path: Path, lab_here: Any, body: str, words: str
) -> None:
    (line,) = told(lab_here, write(tmp_path, body=body))
    assert words in line
    assert re.search(r"\(and \d+ more like it\)$", line)


def test_a_run_says_it_in_the_cells(tmp_path: Path, lab_here: Any) -> None:
    file = write(tmp_path, body="raise RuntimeError('boom')")
    out = ("--out", str(tmp_path / "run"), "--device", "cpu", "--precision", "quick", "--json")
    done = lab_here("run", file, "--impl", "mine", "--direction", "fwd", *out)
    assert done.returncode == 1
    (cell,) = [c for c in json.loads(done.stdout)["cells"] if c["impl"] == "mine"]
    assert cell["reason"] == "mine.py:10: RuntimeError: boom (during forward)"


def test_different_errors_stay_apart() -> None:
    failures = [f"{check} [m/a/float32]: raised {error}" for check in "ab" for error in ("X", "Y")]
    verdict = Verdict("op", "m", None)
    kinds = type("Told", (Verdict,), {"failures": [*failures, "c [m/a]: wrong", "c [m/b]: far"]})
    found = dict(kinds(*vars(verdict).values()).kinds())
    assert found == {failures[0]: 1, failures[1]: 1, "c [m/a]: wrong": 1}
