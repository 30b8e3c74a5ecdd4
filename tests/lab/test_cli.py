"""The command line: what it accepts, what it prints, and its exit codes."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuselab.command_line.cli import command
from fuselab.records import metrics
from fuselab.storage.store import Store
from fuseline import table


@pytest.fixture(scope="module")
def finished(lab: Any, toy: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("cli") / "run"
    arguments = ["run", toy, "--out", str(out), "--device", "cpu", "--dtype", "float32"]
    arguments += ["--impl", "eager", "--impl", "right"]
    return lab(*arguments), out, arguments


def stored(folder: Path) -> list[dict[str, Any]]:
    with Store.open_readonly(folder) as store:
        return metrics.records(store.measurements())


def test_run_prints_a_table_and_where_it_is_stored(finished: Any) -> None:
    done, out, _ = finished
    assert done.returncode == 0, done.stderr
    assert "eager (us)" in done.stdout
    assert str(out) in done.stdout
    assert (out / "run.sqlite").is_file()


def test_progress_goes_to_stderr_line_by_line(finished: Any) -> None:
    lines = finished[0].stderr.splitlines()
    assert lines[0].startswith("8 cells on cpu; 0 already in")
    assert lines[1].startswith("precision ")
    assert ": about " in lines[1]
    assert [line.split()[0] for line in lines[2:-1]] == ["[1/3]", "[2/3]", "[3/3]"]
    assert all("to go)" in line for line in lines[2:-1])
    assert lines[-1].startswith("measured in ")
    assert "timing " in lines[-1]


def test_the_same_command_finds_its_work_done(lab_here: Any, finished: Any) -> None:
    _, out, arguments = finished
    again = lab_here(*arguments)
    assert again.returncode == 0
    assert f"8 already in {out}, 0 to measure" in again.stderr


def test_every_run_has_the_ceiling_of_the_device_and_of_each_case(finished: Any) -> None:
    cells = stored(finished[1])
    peaks = [c for c in cells if c["op"] == "ceiling"]
    assert [c["impl"] for c in peaks] == ["copy", "add"]
    for peak in peaks:
        assert peak["median_us"] > 0
        # Each of up to three streams is cut to a multiple of 4096 bytes.
        whole = pytest.approx(4 << 30, abs=3 * 4096)
        assert peak["ideal_bytes"] == whole or "MiB" in peak["reason"]
    beside = {c["direction"]: c for c in cells if c["op"] == "swish" and c["impl"] == "ceiling"}
    for direction, ceiling in beside.items():
        case = next(c for c in cells if (c["direction"], c["impl"]) == (direction, "right"))
        assert ceiling["ideal_bytes"] == pytest.approx(case["ideal_bytes"], abs=48)


def test_a_picture_of_what_was_not_measured_lists_what_was(lab_here: Any, finished: Any) -> None:
    _, out, _ = finished
    wrong = lab_here("plot", str(out), str(out / "x.svg"), "--dtype", "bf16")
    assert wrong.returncode == 2
    assert "dtype: got 'bfloat16', expected one of: float32" in wrong.stderr
    assert not (out / "x.svg").exists()


def test_export_is_stable_and_the_formats_agree(finished: Any, capsys: Any) -> None:
    folder = str(finished[1])
    assert command(["export", folder]) == 0
    first = capsys.readouterr().out
    assert command(["export", folder, "--format", "jsonl"]) == 0
    assert capsys.readouterr().out == first
    assert command(["export", folder, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    cells = [json.loads(line) for line in first.splitlines()]
    assert [row["impl"] for row in rows] == [cell["impl"] for cell in cells]
    assert list(rows[0]) == list(cells[0])


def test_report_writes_page_and_markdown_and_prints_their_paths(finished: Any, capsys: Any) -> None:
    folder = finished[1]
    assert command(["report", str(folder)]) == 0
    paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert paths == [folder / "report.html", folder / "report.md"]
    assert all(path.stat().st_size > 500 for path in paths)


@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG")])
def test_plot_writes_a_picture(name: str, begins: bytes, finished: Any, tmp_path: Path) -> None:
    assert command(["plot", str(finished[1]), str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_several_runs_are_one_page_beside_the_first(
    finished: Any, capsys: Any, tmp_path: Path
) -> None:
    folder = str(finished[1])
    page = tmp_path / "page.html"
    assert command(["report", folder, folder, "--html", str(page)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(page)]
    assert "<h1>B beside A</h1>" in page.read_text()
    for options, words in (
        (["--markdown", "x.md"], "fuselab compare --markdown"),
        (["--grid", str(tmp_path)], "expected one"),
        ([folder] * 3, "got 5 runs, expected at most 4"),
    ):
        assert command(["report", folder, folder, *options]) == 2
        assert words in capsys.readouterr().err


def test_list_tells_what_can_be_measured(toy: str, capsys: Any) -> None:
    assert command(["list", toy, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["op"] == "swish"
    assert row["impls"] == ["eager", "right", "torchscript", "compile", "ceiling"]
    assert row["suites"] == {"quick": ["small"], "full": ["large"]}


@pytest.mark.parametrize("width", [80, 100])
def test_list_fits_a_terminal_and_shows_the_suites_of_cases(
    width: int, toy: str, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert command(["list"]) == 0
    all_of_them = capsys.readouterr().out
    assert command(["list", "softmax", toy]) == 0
    named = capsys.readouterr().out
    assert max(map(len, (all_of_them + named).splitlines())) <= width
    assert "rms_norm: y =" in all_of_them
    lines = re.sub(" +", " ", all_of_them + named)
    assert " suite quick 4 cases: " in lines
    assert " suite fusion 100 cases: 128x128, 128x256, 128x512, " in lines
    assert " suite quick 1 case: small" in lines
    assert "32768x1024" in named  # named operators have all of their cases


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "no_such_op"], ["op", "'no_such_op'", "rms_norm"]),
        (["run", "TOY", "--impl", "cudnn"], ["impl", "'cudnn'", "eager, right, torchscript"]),
        (["run", "TOY", "--suite", "slow"], ["suite", "'slow'", "quick, full"]),
        (["run", "TOY", "--dtype", "int8"], ["dtype", "'int8'", "float32, bfloat16"]),
        (["run", "TOY", "--case", "huge"], ["case", "'huge'", "small, large"]),
        (["run", "TOY", "--direction", "up"], ["direction", "'up'", "fwd, bwd"]),
        (["run", "TOY", "--device", "tpu"], ["device", "'tpu'", "cpu"]),
        (["run", "missing.py"], ["missing.py", "no such file"]),
        (["run", "TOY", "--speed", "9"], ["--speed"]),
        (["check", "TOY", "--impl", "compile"], ["impl", "'compile'", "eager, right"]),
        (["list", "no_such_op"], ["'no_such_op'", "rms_norm"]),
        (["list", "sofmax"], ["'sofmax'", "did you mean softmax or log_softmax"]),
        (["check", "softmax", "--impl", "cpuu"], ["did you mean cpu?"]),
        (["run", "TOY", "--case", "smal"], ["did you mean small?"]),
        (["run", "TOY", "--suite", "quik"], ["did you mean quick?"]),
        (["run", "TOY", "--dtype", "float23"], ["did you mean float32"]),
        (["run", "softmax", "--case", "128x1"], [" and 92 more; did you mean 128x"]),
        (["hlo", "sofmax"], ["did you mean softmax"]),
        (["compile-bench", "sofmax"], ["did you mean softmax"]),
        (["train-bench", "--variant", "eagr"], ["--variant: got 'eagr'", "did you mean "]),
        (["explain", "nofile.py:block"], ["there is no file 'nofile.py'"]),
        (["explain", "TOY"], ["a file alone", ":FUNCTION"]),
        (["explain", "mlp_blok"], ["did you mean mlp_block?"]),
        (["tune", "softmax"], ["nothing in softmax can be tuned", "of ours rms_norm"]),
        (["new", "softmax"], ["'softmax'", "an operator of fuseline's"]),
        (["run"], ["OP_OR_FILE: got none", f"{len(table.load())} operators", "--suite quick"]),
        (["fly"], ["fly"]),
    ],
)
def test_a_name_that_does_not_exist_is_exit_2_and_lists_what_does(
    arguments: list[str], words: list[str], toy: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command([toy if word == "TOY" else word for word in arguments]) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message
    assert not list(tmp_path.iterdir()), "a refused command must leave nothing behind"


def test_a_file_that_cannot_be_imported_is_exit_2(tmp_path: Path, capsys: Any) -> None:
    broken = tmp_path / "broken_ops.py"
    broken.write_text("import does_not_exist\n")
    assert command(["list", str(broken)]) == 2
    assert "ModuleNotFoundError" in capsys.readouterr().err
    empty = tmp_path / "empty_ops.py"
    empty.write_text("answer = 42\n")
    assert command(["list", str(empty)]) == 2
    assert "no OpSpec" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["report", "export"])
def test_a_run_that_is_missing_or_corrupt_is_exit_3(verb: str, tmp_path: Path, capsys: Any) -> None:
    assert command([verb, str(tmp_path / "nowhere")]) == 3
    assert "nowhere" in capsys.readouterr().err
    (tmp_path / "run.sqlite").write_bytes(b"this is no database, " * 100)
    assert command([verb, str(tmp_path)]) == 3
    assert str(tmp_path) in capsys.readouterr().err


def test_a_run_without_one_good_cell_is_exit_3(lab_here: Any, tmp_path: Path) -> None:
    file = tmp_path / "absent_ops.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from fuseline.testing import Implementation\n"
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from toy_ops import SWISH as swish, right\n"
        "absent = Implementation('absent', right, unavailable=lambda device: 'it is on holiday')\n"
        "SPEC = replace(swish, name='absent', implementations=(absent,))\n"
        "del swish\n"
    )
    out = str(tmp_path / "run")
    done = lab_here("run", str(file), "--out", out, "--device", "cpu", "--json", "--dtype", "fp32")
    assert done.returncode == 3, done.stderr
    cells = [c for c in json.loads(done.stdout)["cells"] if c["impl"] == "absent"]
    assert {(c["status"], c["reason"]) for c in cells} == {("unsupported", "it is on holiday")}


def test_check_passes_what_is_right_and_survives_a_crash(
    lab_here: Any, toy: str, faulty: str
) -> None:
    good = lab_here(
        "check", toy, "--device", "cpu", "--level", "quick", "--json", "--dtype", "fp32"
    )
    assert good.returncode == 0, good.stderr
    assert [(v["impl"], v["ok"]) for v in json.loads(good.stdout)] == [
        ("eager", True),
        ("right", True),
    ]
    options = ["--device", "cpu", "--level", "quick", "--dtype", "fp32", "--json"]
    bad = lab_here("check", faulty, *options, "--impl", "wrong", "--impl", "segfaults")
    assert bad.returncode == 1
    wrong, crash = sorted(json.loads(bad.stdout), key=lambda verdict: verdict["impl"] != "wrong")
    assert wrong["failures"]
    assert "SIGSEGV" in crash["failures"][-1]


def test_without_the_lab_extra_it_prints_the_line_that_mends_it() -> None:
    script = (
        "import sys, runpy; sys.modules['click'] = None; "
        "sys.argv = ['fuselab', 'list']; runpy.run_module('fuselab', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'fuseline[lab]'" in done.stderr
    assert "Traceback" not in done.stderr
