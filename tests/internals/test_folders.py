"""framework-internals: each folder has its page and its command, which `fuselab internals` runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuselab.command_line.cli import command

FOLDERS = Path(__file__).parents[2] / "framework-internals"
NAMES = ["compile-bench", "dispatcher-trace", "jax-baseline", "rmsnorm-fused"]


def test_each_has_a_page_that_names_its_command() -> None:
    assert sorted(path.parent.name for path in FOLDERS.glob("*/run.py")) == NAMES
    for name in NAMES:
        page = (FOLDERS / name / "README.md").read_text()
        assert page.startswith(f"# {name}: ")
        assert "python run.py" in page
        assert f"({name}/)" in (FOLDERS / "README.md").read_text()


def folder(root: Path, name: str, script: str) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "run.py").write_text(script)
    (root / name / "README.md").write_text(f"# {name}: what it is about\n")


def test_one_that_fails_does_not_keep_the_others(tmp_path, capfd: pytest.CaptureFixture[str]):
    writes = "import pathlib, sys\nout = pathlib.Path(sys.argv[2])\nout.mkdir(parents=True)\n"
    folder(tmp_path / "in", "a", "raise SystemExit(5)")
    folder(tmp_path / "in", "b", f"{writes}(out / 'table <1>.md').write_text('x')")
    out = tmp_path / "out"
    (out / "a").mkdir(parents=True)
    (out / "a" / "old.md").write_text("of an earlier run")
    os.utime(out / "a" / "old.md", (1, 1))
    assert command(["internals", "--folder", str(tmp_path / "in"), "--out", str(out)]) == 1
    told = capfd.readouterr().out
    assert "a: 0 s, exit code 5" in told
    assert "b: 0 s, exit code 0" in told
    page = (out / "index.html").read_text()
    assert "what it is about" in page
    assert '<a href="b/table%20%3C1%3E.md">table &lt;1&gt;.md</a>' in page
    assert "exit code 5" in page
    assert "old.md" not in page


def test_times_taken_beside_others_work_are_told(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    class Busy:
        disturbance = "others were <busy>"

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("fuselab.internals.folders.OtherLoad", Busy)
    folder(tmp_path / "in", "a", "")
    out = tmp_path / "out"
    assert command(["internals", "--folder", str(tmp_path / "in"), "--out", str(out)]) == 0
    assert "exit code 0; noisy: others were <busy>" in capfd.readouterr().out
    assert "noisy</b>: others were &lt;busy&gt;." in (out / "index.html").read_text()


def test_every_reading_has_a_link() -> None:
    reading = (FOLDERS / "README.md").read_text().partition("## Reading\n")[2]
    entries = reading.split("\n- ")[1:]
    assert len(entries) >= 5
    assert all("](http" in entry for entry in entries)


def test_names_are_checked_before_anything_runs(tmp_path, capfd: pytest.CaptureFixture[str]):
    assert command(["internals", "--folder", str(tmp_path)]) == 2
    assert "expected a folder with */run.py" in capfd.readouterr().err
    assert command(["internals", "--folder", str(FOLDERS), "--only", "week-9"]) == 2
    assert "expected one of: compile-bench" in capfd.readouterr().err
