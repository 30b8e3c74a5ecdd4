"""Heat maps in the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuselab.command_line.cli import command
from fuselab.model import Group, Measurement, Status
from fuselab.storage.store import Store


@pytest.fixture
def run(tmp_path: Path) -> str:
    """Eager over ours: 2, 0.5, 1 and 16 at four sizes; compile and ours failed at others."""
    ratios = {"128x128": 2.0, "128x1024": 0.5, "1024x128": 1.0, "1024x1024": 16.0}
    with Store.open(tmp_path / "run") as store:
        for case in (*ratios, "128x4096", "1024x4096"):
            group = Group("softmax", case, "float32", "fwd", "contiguous", "cpu", ())
            us = {"eager": 10.0 * ratios.get(case, 1.0), "cpu": 10.0}
            found = [
                Measurement(group.cell(n), Status.OK, timer="wall", samples_us=(t,) * 9)
                for n, t in us.items()
            ]
            if case == "128x4096":
                found[0] = Measurement(group.cell("eager"), Status.OUT_OF_MEMORY, "no room")
            if case == "1024x4096":
                found[0] = Measurement(group.cell("eager"), Status.INCORRECT, "wrong")
            store.write(group, found)
    return str(tmp_path / "run")


def test_a_map_has_a_place_for_every_size(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["show", run]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == ["softmax", "fwd", "float32", "cpu:", "eager", "/", "ours"]
    assert lines[1] == ["M", "\\", "N", "128", "1024", "4096"]
    assert lines[3] == ["128", "2.00", "0.50", "OOM"]
    assert lines[4] == ["1024", "1.00", "16.0", "x"]
    assert lines[-1][:3] == ["above", "1", "the"]


def test_colors_say_which_side_is_faster(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    assert command(["show", run, "--dtype", "fp32", "--direction", "fwd"]) == 0
    out = capsys.readouterr().out
    lighter, same = "103;169;207", "247;247;247"
    shades = {"2.00": lighter, "0.50": "179;88;6", "1.00": same, "16.0": "33;102;172"}
    for text, shade in shades.items():
        before = out[: out.index(text)]
        assert f"48;2;{shade}" in before[before.rindex("\x1b[") :], text


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--op", "layer_norm"), 2, "op: got 'layer_norm', expected one of: softmax"),
        (("--direction", "bwd"), 2, "direction: got 'bwd'"),
        (("--against", "compile"), 2, "--against: got 'compile', expected one with good times"),
    ],
)
def test_what_there_is_none_of_is_named(
    run: str, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], code: int, words: str
) -> None:
    assert command(["show", run, *options]) == code
    assert words in capsys.readouterr().err


def test_a_run_without_sizes_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(tmp_path / "run"):
        pass
    assert command(["show", str(tmp_path / "run")]) == 3
    assert "no case is named by its sizes" in capsys.readouterr().err


@pytest.fixture
def weighed(tmp_path: Path) -> str:
    """Eager needs 30 GiB at the largest size and was out of memory at one, ours takes a third."""
    needs = {"128x128": 1.0, "128x1024": 15.0, "1024x128": 30.0, "1024x1024": 90.0}
    with Store.open(tmp_path / "weighed") as store:
        for case, gib in needs.items():
            group = Group("softmax", case, "float32", "fwd", "contiguous", "cuda:0", ())
            found = [
                Measurement(
                    group.cell(name),
                    Status.OK,
                    timer="cupti",
                    samples_us=(1.0,) * 9,
                    buffer_bytes=int(part * gib * 2**30),
                )
                for name, part in (("eager", 1), ("compile", 0.7), ("cuda", 1 / 3), ("ceiling", 0))
            ]
            if gib == 90:
                found[0] = Measurement(group.cell("eager"), Status.OUT_OF_MEMORY, "no room")
            store.write(group, found)
    return str(tmp_path / "weighed")


@pytest.mark.parametrize(
    ("limit", "alone", "rows"),
    [
        ("24GiB", "0 of 4", [["128", "all", "all"], ["1024", "not-eager", "none"]]),
        ("30.5GiB", "1 of 4", [["128", "all", "all"], ["1024", "all", "ours"]]),
        ("12 GiB", "1 of 4", [["128", "all", "not-eager"], ["1024", "ours", "none"]]),
        ("100MiB", "0 of 4", [["128", "none", "none"], ["1024", "none", "none"]]),
    ],
)
def test_who_fits_into_a_memory(
    limit: str, alone: str, rows: list[list[str]], weighed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["show", weighed, "--memory-limit", limit]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"; ours alone in {alone}")
    told = [line.replace("not eager", "not-eager").split() for line in lines if line.strip()]
    assert told[3:5] == rows


def test_a_limit_that_is_none_is_refused(
    run: str, weighed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("24", "GiB", "0GiB", "24GB", "-1GiB"):
        assert command(["show", weighed, "--memory-limit", text]) == 2
        assert f"got {text!r}, expected a size such as 24GiB" in capsys.readouterr().err
    assert command(["show", weighed, "--memory-limit", "1GiB", "--against", "eager"]) == 2
    capsys.readouterr()
    assert command(["show", run, "--memory-limit", "1GiB"]) == 0  # one was out of memory
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[3] == ["128", "?", "?", "not", "eager"]
    with Store.open(f"{run}-without") as store:
        group = Group("softmax", "8x8", "float32", "fwd", "contiguous", "cpu", ())
        one = Measurement(group.cell("cpu"), Status.OK, timer="wall", samples_us=(1.0,) * 9)
        store.write(group, [one])
    assert command(["show", f"{run}-without", "--memory-limit", "1GiB"]) == 3
    assert "no cell has its memory" in capsys.readouterr().err
