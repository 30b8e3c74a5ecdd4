"""A run as one file for others: it reads as the run does, and names nobody."""

from __future__ import annotations

import getpass
import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from fuselab.command_line.cli import command
from fuselab.model import Count, Group, Measurement, Proof, Status
from fuselab.storage.store import Store

GROUP = Group("norm", "4x61", "float32", "fwd", "contiguous", "cpu", ("eager", "fast", "bad"))
SAMPLES = tuple(10.0 + 0.01 * i for i in range(40))
SECRETS = (f"/home/{getpass.getuser()}/secret/op.py", "C:\\Users\\somebody\\op.py")


@pytest.fixture
def run(tmp_path: Path) -> str:
    with Store.open(tmp_path / "run") as store:
        store.set_environment({"cpu": "EPYC", "variables": {"LD_PRELOAD": "/opt/secret/lib.so"}})
        bad = f"File {SECRETS[0]!r}, line 3 on {platform.node()}; {SECRETS[1]}"
        missing = Count(None, "instructions", "", unavailable=f"{SECRETS[0]}: not found")
        store.write(
            GROUP,
            [
                Measurement(GROUP.cell("eager"), Status.OK, timer="wall", samples_us=SAMPLES),
                Measurement(
                    *(GROUP.cell("fast"), Status.OK),
                    timer="wall",
                    samples_us=SAMPLES,
                    proof=Proof(kernels={"void a::b<1/2>(float*)": 1}, role="ours"),
                    counts={"instructions": missing},
                ),
                Measurement(GROUP.cell("bad"), Status.ERROR, bad),
            ],
        )
    return str(tmp_path / "run")


def test_it_names_neither_paths_nor_people(run: str, tmp_path: Path) -> None:
    file = tmp_path / "out" / "shared.sqlite"
    assert command(["share", run, str(file)]) == 0
    assert [path.name for path in file.parent.iterdir()] == ["shared.sqlite"]
    raw = file.read_bytes()
    for secret in ("secret", "somebody", platform.node(), "/opt", "/home"):
        assert len(secret) < 3 or secret.encode() not in raw, secret
    with Store.open_readonly(file) as shared:
        found = {m.cell.impl: m for m in shared.measurements()}
        assert shared.environment()[0]["cpu"] == "EPYC"
    assert "(a path)" in found["bad"].reason
    assert "line 3" in found["bad"].reason
    assert found["fast"].proof.kernels == {"void a::b<1/2>(float*)": 1}
    assert found["fast"].samples_us == SAMPLES


def test_it_stands_for_the_run(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "shared.sqlite")
    assert command(["share", run, file]) == 0
    capsys.readouterr()
    lines = []
    for name in (run, file):
        assert command(["export", name]) == 0
        lines.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert [line["median_us"] for line in lines[0]] == [line["median_us"] for line in lines[1]]
    timed = ("--impl", "eager", "--impl", "fast")
    assert command(["compare", run, file, *timed]) == 0
    assert "0 slower, 0 faster, 0 unknown, 2 same" in capsys.readouterr().out
    assert command(["compare", run, "--baseline", file, *timed]) == 0
    assert command(["report", file]) == 0
    assert (tmp_path / "shared.html").is_file()
    assert (tmp_path / "shared.md").is_file()
    assert command(["merge", str(tmp_path / "whole"), file]) == 0
    assert command(["report", file, "--html", file]) == 2


def test_a_file_is_not_written_over(run: str, tmp_path: Path) -> None:
    there = tmp_path / "there.sqlite"
    there.write_text("mine")
    assert command(["share", run, str(there)]) == 2
    assert there.read_text() == "mine"
    assert command(["share", run, str(tmp_path / "run.json")]) == 2
    assert command(["share", str(tmp_path / "none"), str(tmp_path / "new.sqlite")]) == 3
    with Store.open(tmp_path / "empty"):
        pass
    assert command(["share", str(tmp_path / "empty"), str(tmp_path / "new.sqlite")]) == 3
    assert not (tmp_path / "new.sqlite").exists()


def test_paths_alone_are_taken_out(run: str, tmp_path: Path) -> None:
    said = "a/b of 1/2, n/a; ratio 3/4 at /usr/lib/x.so: https://example.org/a/b 8x/y"
    with Store.open(run) as store:
        cell = replace(GROUP, case="other")
        store.write(cell, [Measurement(cell.cell("bad"), Status.ERROR, said)])
    file = tmp_path / "shared.sqlite"
    assert command(["share", run, str(file)]) == 0
    with Store.open_readonly(file) as shared:
        (found,) = [m.reason for m in shared.measurements() if m.cell.case == "other"]
    assert found == said.replace("/usr/lib/x.so", "(a path)")
