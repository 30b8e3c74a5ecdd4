"""A comparison as a gate of somebody's CI: exit codes, JUnit, Markdown, annotations, baselines."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from fuselab.command_line.cli import cli, command
from fuselab.model import Group, Measurement, Proof, Status
from fuselab.storage.store import Store

GROUP = Group("norm", "4x61", "float32", "fwd", "contiguous", "cuda:0", ("fast",))
STEADY = tuple(1 + 0.0001 * i for i in range(-20, 21))
HOSTILE = 'a|b <i>"&\n::error::% x]]>\x1b[31m'


def ok(us: float, case: str = "4x61", **proof: Any) -> Measurement:
    cell = replace(GROUP, case=case).cell("fast")
    samples = tuple(us * step for step in STEADY)
    return Measurement(cell, Status.OK, timer="cupti", samples_us=samples, proof=Proof(**proof))


def store(folder: Path, *measurements: Measurement) -> str:
    with Store.open(folder) as run:
        for m in measurements:
            run.write(replace(GROUP, case=m.cell.case), [m])
    return str(folder)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """A, and B that is slower in one cell, faster in one, and has none of a third."""
    a = (ok(100.0, "same"), ok(100.0, "slow"), ok(100.0, "quick"), ok(100.0, "gone"))
    b = (ok(100.0, "same"), ok(120.0, "slow"), ok(80.0, "quick"))
    return store(tmp_path / "a", *a), store(tmp_path / "b", *b)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 1),
        (("--fail-on", "slower"), 1),
        (("--fail-on", "undecided"), 3),
        (("--fail-on", "slower", "--allow", "50%"), 0),
        (("--fail-on", "undecided", "--fail-on", "slower", "--allow", "50%"), 3),
        (("--fail-on", "nothing"), 0),
    ],
)
def test_what_fails_is_what_was_asked(
    runs: tuple[str, str], options: tuple[str, ...], code: int
) -> None:
    assert command(["compare", *runs, *options]) == code


def test_junit_has_a_test_for_each_cell(runs: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "made" / "junit.xml"
    assert command(["compare", *runs, "--junit", str(path)]) == 1
    (suite,) = ElementTree.parse(path).getroot()
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "skipped", "errors")}
    assert counts == {"tests": 4, "failures": 1, "skipped": 1, "errors": 0}
    tests = {case.attrib["name"].split()[0]: case for case in suite}
    assert tests["slow"].attrib["classname"] == "norm.fwd"
    assert float(tests["slow"].attrib["time"]) == pytest.approx(120e-6)
    assert "100 us -> 120 us, 1.200 times as long" in tests["slow"][0].attrib["message"]
    assert (tests["slow"][0].tag, tests["gone"][0].tag) == ("failure", "skipped")
    assert "B has no such cell" in tests["gone"][0].attrib["message"]
    assert not len(tests["same"])
    assert not len(tests["quick"])


def test_markdown_shows_what_is_not_the_same(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "summary.md"
    command(["compare", *runs, "--markdown", str(path), "--annotate", "github"])
    text = path.read_text()
    assert text.startswith("**Performance: failed**: 1 slower, 1 faster, 1 unknown, 1 same")
    rows = [line for line in text.splitlines() if line.startswith("| norm")]
    assert ["slower" in rows[0], "faster" in rows[1], "unknown" in rows[2]] == [True] * 3
    said = capsys.readouterr().out.splitlines()
    assert said[-3].startswith("::error title=norm fwd slow float32 contiguous fast::slower")
    assert said[-2].startswith("::warning title=norm fwd gone")
    assert said[-1].startswith("::notice title=fuselab compare::1 slower")
    command(["compare", *runs, "--json", "--annotate", "azure"])
    out, err = capsys.readouterr()
    assert json.loads(out)["summary"]["slower"] == pytest.approx(1 / 3)
    assert "##vso[task.logissue type=error]norm fwd slow" in err


def test_many_cells_are_folded_and_the_worst_are_annotated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"case{i}" for i in range(30)]
    a = store(tmp_path / "a", *(ok(100.0, name) for name in names))
    b = store(tmp_path / "b", *(ok(110.0 + i, name) for i, name in enumerate(names)))
    path = tmp_path / "summary.md"
    command(["compare", a, b, "--markdown", str(path), "--annotate", "github"])
    shown, folded = path.read_text().split("<details><summary>10 more</summary>")
    assert shown.count("| norm") == 20
    assert folded.count("| norm") == 10
    errors = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::error")]
    assert len(errors) == 10
    assert "case29" in errors[0]


def test_no_text_of_a_cell_is_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [store(tmp_path / name, ok(us, HOSTILE)) for name, us in (("a", 100.0), ("b", 130.0))]
    junit, summary = tmp_path / "junit.xml", tmp_path / "summary.md"
    options = ("--junit", str(junit), "--markdown", str(summary), "--annotate", "github")
    assert command(["compare", *runs, *options]) == 1
    assert "a|b" in ElementTree.parse(junit).getroot()[0][0].attrib["name"]
    (row,) = [line for line in summary.read_text().splitlines() if line.startswith("| norm")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert "<i>" not in row
    out = capsys.readouterr().out
    assert not [line for line in out.splitlines() if line.startswith("::error::")]
    assert "%25" in out


def test_a_baseline_is_short_sorted_and_compares_as_its_run(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["export", runs[0], "--format", "baseline"]) == 0
    text = capsys.readouterr().out
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["case"] for line in lines] == ["gone", "quick", "same", "slow"]
    assert [line["median_us"] for line in lines] == [100.0] * 4
    assert all(len(line["samples_us"]) == len(STEADY) for line in lines)
    path = tmp_path / "baseline.jsonl"
    path.write_text(text)
    found = []
    for arguments in ([runs[1], "--baseline", str(path)], [*runs]):
        assert command(["compare", *arguments, "--json"]) == 1
        found.append(json.loads(capsys.readouterr().out)["cells"])
    verdicts = [{cell["case"]: cell["verdict"] for cell in cells} for cells in found]
    assert verdicts[0] == verdicts[1]
    assert command(["compare", *runs, "--baseline", str(path)]) == 2
    assert "expected one run beside --baseline" in capsys.readouterr().err


def test_the_samples_of_a_baseline_are_bounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = replace(ok(1.0, sm_mhz=[1700.0, 1980.0, 1980.0]), samples_us=(1.23456789,) * 2501)
    command(["export", store(tmp_path / "a", many), "--format", "baseline"])
    line = json.loads(capsys.readouterr().out)
    assert len(line["samples_us"]) <= 100
    assert set(line["samples_us"]) == {1.235}
    assert line["sm_mhz"] == [1980.0]
    assert command(["export", store(tmp_path / "none"), "--format", "baseline"]) == 3


def test_the_commands_of_the_page_and_the_workflow_parse() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "ci.md").read_text() + (docs / "performance.yml").read_text()
    found = re.findall(r"fuselab ((?:run|compare|export) (?:[^`#\n\\]|\\\n)*)", text)
    assert len(found) >= 5
    for words in (shlex.split(one.replace("\\\n", " ").partition(" > ")[0]) for one in found):
        with cli.commands[words[0]].make_context(words[0], words[1:]):
            pass
    assert CliRunner().invoke(cli, ["compare", "--help"]).exit_code == 0
