"""Heat maps in the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuselab.cli import command
from fuselab.model import Group, Measurement, Status
from fuselab.store import Store


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
