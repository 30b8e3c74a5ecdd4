"""Runs that somebody else wrote, or a disk spoiled: a right page, or one line and exit code 3."""

from __future__ import annotations

import json
import math
import os
import random
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuselab.command_line.cli import command
from fuselab.model import Accuracy, Group, Measurement, Proof, Status
from fuselab.planning.plan import CEILING
from fuselab.storage.store import FILE_NAME, Store

PAYLOAD = """'"><script>alert(1)</script>=cmd|' /C calc'!A0\x1b[31m\u202e{{7*7}}|`%s\ud7ff\x00"""
TEXTS = ("", PAYLOAD, "x" * 70_000, "a/b\\..\\c", "\n\r\u2028", "_hidden", "$\\frac{1}{0}$", "🙂")
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1e300, -1e300, 1e-300, 10**400, math.nan, math.inf, -math.inf, True, None),
    *("1", [], {}, [1e308] * 3, {"a": [math.nan]}),
)
BODIES = ("[]", "{", '{"a": "\\ud800"}', "[" * 50_000, '{"b": 1e999}', b"\xff")
COLUMNS = ("op", "impl", "direction", '"case"', "dtype", "layout", "device", "status",
           "environment", "written_at", "body", "samples_us")  # fmt: skip
FIELDS = ("reason", "timer", "hot_us", "host_us", "accuracy", "peak_bytes", "buffer_bytes", "code",
          "ideal_bytes", "flops", "proof", "counts", "precision", "new_field")  # fmt: skip


def make(folder: Path) -> None:
    with Store.open(folder) as store:
        store.set_environment({"device": "cpu", "cpu": "EPYC", "torch": "2", "variables": {}})
        for case, us in (("4x32", 9.0), ("8x61", 70.0)):
            names = ("eager", "cpu", CEILING)
            group = Group("norm", case, "float32", "bwd", "contiguous", "cpu", names)
            found = [
                Measurement(
                    group.cell(impl),
                    Status.OK,
                    timer="wall",
                    samples_us=tuple(us * (1 + place + 1e-4 * n) for n in range(12)),
                    hot_us=(us, us),
                    host_us=us,
                    accuracy=Accuracy(1e-6, 1e-7, 3.0, 0.5, 2.0),
                    peak_bytes=4096,
                    buffer_bytes=8192,
                    ideal_bytes=65536 * len(case),
                    flops=12,
                    proof=Proof(kernels={"aten::mul": 2}, mix="1R1W", sm_mhz=(1, 2)),
                )
                for place, impl in enumerate(names)
            ]
            store.write(group, found)


def damage(file: Path, draw: random.Random) -> None:
    """Change one value of the run to what nobody would write."""
    with sqlite3.connect(file) as sql:
        if draw.random() < 0.1:
            body = draw.choice(
                ("[]", "{", '{"a": "\\ud800"}', "[" * 50_000, '{"b": 1e999}', b"\xff")
            )
            sql.execute("UPDATE environment SET body = ?", (body,))
            return
        (row,) = draw.sample(sql.execute("SELECT rowid, body FROM cell").fetchall(), 1)
        column = draw.choice(COLUMNS)
        if column == "body" and draw.random() < 0.9:
            fields = json.loads(row[1])
            name = draw.choice(FIELDS)
            if isinstance(fields.get(name), dict) and draw.random() < 0.7 and fields[name]:
                fields[name][draw.choice(list(fields[name]))] = draw.choice((*NUMBERS, *TEXTS))
            else:
                fields[name] = draw.choice((*NUMBERS, *TEXTS))
            value: Any = json.dumps(fields)
        elif column == "samples_us":
            numbers = [draw.choice((0.0, -1.0, 1e-300, 1e308, math.nan, math.inf)) for _ in "abc"]
            value = draw.choice((struct.pack("<3d", *numbers), b"\x01\x02\x03", "text", None, 7))
        else:
            value = draw.choice(
                (*TEXTS, b"\xff\xfe", 7, 1.5, "\udcff".encode(errors="surrogatepass"))
            )
        try:
            sql.execute(f"UPDATE cell SET {column} = ? WHERE rowid = ?", (value, row[0]))
        except sqlite3.Error:  # a column that cannot have it
            sql.execute("UPDATE cell SET body = NULL || 'x' WHERE rowid = -1")


def verbs(folder: Path) -> list[list[str]]:
    run = str(folder)
    return [
        ["report", run],
        ["report", run, run],
        ["plot", run, str(folder / "x.svg")],
        ["export", run],
        ["export", run, "--format", "csv"],
        ["export", run, "--samples"],
        ["compare", run, run],
        ["compare", run, "--impl-a", "eager", "--impl-b", "cpu"],
    ]


def check(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in verbs(folder):
        code = command(arguments)
        said = capfd.readouterr()
        assert code in (0, 1, 2, 3), arguments
        if code in (2, 3) and arguments[0] != "compare":
            assert said.err.startswith("error: "), said.err
            assert said.err.count("\n") == 1, said.err
        page = folder / "report.html"
        if code == 0 and arguments[0] == "report":
            assert page.read_text().count("<script") == 2  # its own: the data and the code
            assert "{{7*7}}" in page.read_text() or "49" not in page.read_text()[:200]


@pytest.mark.parametrize("seed", range(25))
def test_a_damaged_value_is_a_page_or_one_line(
    seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    draw = random.Random(seed)
    for _ in range(draw.choice((1, 1, 3))):
        damage(tmp_path / FILE_NAME, draw)
    check(tmp_path, capfd)


def test_a_torn_file_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    file = tmp_path / FILE_NAME
    whole, draw = file.read_bytes(), random.Random(5)
    for _ in range(8):
        torn = bytearray(whole[: draw.randrange(len(whole))])
        for place in draw.sample(range(max(1, len(torn))), min(len(torn), 40)):
            torn[place] = draw.randrange(256)
        file.write_bytes(bytes(torn))
        check(tmp_path, capfd)


FOREIGN = {
    "a newer schema": (["PRAGMA user_version = 99"], "newer fuselab"),
    "another program's": (["PRAGMA application_id = 7"], "not a run of fuselab"),
    "a column less": (["ALTER TABLE cell DROP COLUMN body"], "no such column"),
    "a table less": (["DROP TABLE environment"], "no such table"),
    "a view for a table": (["ALTER TABLE cell RENAME TO c", "CREATE VIEW cell AS SELECT 1 AS op"],
                           "no such column"),
    "another status": (["UPDATE cell SET status = 'excellent'"], "'excellent' is not a valid"),
    "no cell": (["DELETE FROM cell"], "the run holds no cell"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_run_of_ours_says_why(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    statements, words = FOREIGN[name]
    with sqlite3.connect(tmp_path / FILE_NAME) as sql:
        for statement in statements:
            sql.execute(statement)
    for arguments in verbs(tmp_path)[: 1 if name == "a table less" else 6]:
        assert command(arguments) == 3, arguments
        said = capfd.readouterr().err
        assert words in said
        assert said.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_run_that_may_only_be_read_is_shown_elsewhere(tmp_path: Path) -> None:
    make(tmp_path / "run")
    (tmp_path / "run" / FILE_NAME).chmod(0o444)
    (tmp_path / "run").chmod(0o555)
    there = [arg for name in ("html", "markdown") for arg in (f"--{name}", str(tmp_path / name))]
    assert command(["report", str(tmp_path / "run"), *there]) == 0
    assert command(["report", str(tmp_path / "run")]) == 3


WRITER = """
import sys
from fuselab.model import Group, Measurement, Status
from fuselab.storage.store import Store

for number in range(20):
    with Store.open(sys.argv[1]) as store:
        store.set_environment({"writer": sys.argv[2]})
        case = f"{sys.argv[2]}-{number}"
        group = Group("op", case, "float32", "fwd", "contiguous", "cpu", ("a",))
        store.write(group, [Measurement(group.cell("a"), Status.OK, "", "wall", (1.0, 2.0))])
"""


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", WRITER, str(tmp_path), str(n)] for n in range(3)]
    writers = [subprocess.Popen(one, stderr=subprocess.PIPE, text=True) for one in commands]
    said = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0], said
    with Store.open_readonly(tmp_path) as store:
        assert len({m.cell.case for m in store.measurements()}) == 60


def paths(folder: Path) -> dict[str, tuple[list[str], str]]:
    run, page = str(folder), str(folder / "same.html")
    link = folder / "link.html"
    link.symlink_to(folder / FILE_NAME)
    return {
        "the run itself": (["--html", str(folder / FILE_NAME)], "the run's own file"),
        "by another name": (["--markdown", f"{run}/x/../{FILE_NAME}"], "the run's own file"),
        "by a link": (["--html", str(link)], "the run's own file"),
        "its log": (["--markdown", str(folder / f"{FILE_NAME}-wal")], "the run's own file"),
        "twice": (["--html", page, "--markdown", page], "the file of --html"),
        "a folder": (["--html", run], "a folder"),
    }


def test_paths_that_would_destroy_something_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    (tmp_path / "x").mkdir()
    before = (tmp_path / FILE_NAME).read_bytes()
    for name, (options, words) in paths(tmp_path).items():
        assert command(["report", str(tmp_path), *options]) == 2, name
        said = capfd.readouterr().err
        assert words in said, name
        assert options[0] in said
    assert (tmp_path / FILE_NAME).read_bytes() == before
    assert not (tmp_path / "same.html").exists()


def test_links_stay_and_a_device_is_written_to(tmp_path: Path) -> None:
    make(tmp_path)
    target, link = tmp_path / "page", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    options = ["--html", str(link), "--markdown", "/dev/null"]
    assert command(["report", str(tmp_path), *options]) == 0
    assert link.is_symlink()
    assert target.read_text().startswith("<!doctype html>")
    assert Path("/dev/null").is_char_device()


def test_a_file_in_the_way_or_a_name_too_long_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    for path in (
        tmp_path / FILE_NAME / "x.html",
        tmp_path / ("x" * 300),
        tmp_path / "\udcff" / "x",
    ):
        code = command(["report", str(tmp_path), "--html", str(path)])
        said = capfd.readouterr()
        assert (code, said.err.count("\n")) in ((2, 1), (3, 1), (0, 0)), said


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_an_export_of_nothing_says_so(
    form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Store.open(tmp_path).close()
    assert command(["export", str(tmp_path), "--format", form]) == 3
    assert "the run holds no cell" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\xff\xfe", "utf-8"),
        (b"op,impl\na,b\n", "line 1: not JSON (Expecting value), expected what `fuselab export"),
        (b"[" * 100_000, "line 1: "),
        (b'{"op": 1}', "line 1: got no"),
        (b"", "too few"),
    ],
)
def test_a_file_that_is_no_export_is_one_line(
    text: bytes, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(text)
    assert command(["compare", str(file), str(file)]) == 3
    said = capfd.readouterr()
    assert words in said.out + said.err


def test_an_export_with_a_mark_and_windows_line_ends_is_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    assert command(["export", str(tmp_path), "--samples"]) == 0
    lines = capfd.readouterr().out.replace("\n", "\r\n")
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + lines.encode())
    assert command(["compare", str(file), str(tmp_path)]) == 0
