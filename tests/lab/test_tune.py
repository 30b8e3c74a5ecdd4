"""fuselab tune: what it measures, chooses, writes; that it ends in time and goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import fake_tuner
import numpy as np
import pytest

from fuselab.commands.tuning import tune
from fuselab.commands.tuning.tune import Choice, Slot
from fuselab.model import Group, Measurement, Status
from fuselab.planning.plan import Filters
from fuseline.core.selection import tuned
from fuseline.core.selection.tuned import Entry, Table, Tile

OPS = str(Path(__file__).with_name("tuned_ops.py"))
KEY = ("fwd", 4)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(tuned.FOLDER, raising=False)
    return tmp_path


def command(*more: str) -> list[str]:
    return [*("tune", OPS, "--device", "cpu", "--dtype", "fp32", "--budget", "120"), *more]


def tile(table: Table, n: int) -> Tile:
    return table.tile(*KEY, n)


FAKE = (
    f"import sys; sys.path.insert(0, {str(Path(OPS).parent)!r}); import fake_tuner; "
    "from fuselab.commands.tuning import tune; tune.entry = fake_tuner; "
)


@pytest.fixture
def lab_faked(lab_here: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `fuselab ...` as FAKE has it, in this process."""
    monkeypatch.setattr(tune, "entry", fake_tuner)
    return lab_here


def test_a_table_is_measured_proven_and_written_and_a_killed_command_goes_on(
    lab_faked: Any, folders: Path
) -> None:
    module = f"{FAKE}import runpy; runpy.run_module('fuselab', run_name='__main__')"
    started = subprocess.Popen(
        [sys.executable, "-c", module, *command()], stderr=subprocess.PIPE, text=True
    )
    assert started.stderr
    for line in started.stderr:
        if line.startswith("[2/"):
            break
    started.send_signal(signal.SIGKILL)
    started.wait()
    started.stderr.close()
    assert not (folders / "config").exists()
    again = lab_faked(*command())
    assert again.returncode == 0, again.stderr
    # Three classes in two problems each, of which two were done.
    assert "tiles to time in 4 problems" in again.stderr
    assert "3 of 3 classes measured" in again.stderr
    file = folders / "config" / "fuseline" / "tuned" / "double" / "toy-cpu-2.json"
    found = tuned.load(file)
    assert (found.gpu, found.about["how"][:12]) == ("Toy CPU (2)", "fuselab tune")
    # Up to 64: the fastest that is right. Up to 256: the fastest is wrong on odd rows.
    assert [tile(found, n) for n in (1, 64)] == [Tile(64, 2)] * 2
    assert [tile(found, n) for n in (65, 101, 256)] == [Tile(64, 8), *[Tile(128, 8)] * 2]
    assert tile(found, 1000) == Tile(64, 4)
    assert "fwd float32 rows up to 64: 64-8w -> 64-2w" in again.stdout
    assert re.search(r"2x64 +80.24 us -> +20.06 us  x 0.250", again.stdout)
    assert "tiled-16-1w is incorrect on 3x255: wrong" in again.stdout
    third = lab_faked(*command("--json"))
    assert "problems" not in third.stderr
    by_row = {c["row"]: c for c in json.loads(third.stdout)["classes"]}
    assert by_row[64]["before"] == by_row[64]["after"] == "64-2w"
    assert "6 problems" in lab_faked(*command("--fresh")).stderr


def test_a_budget_ends_the_measuring_and_the_same_command_goes_on(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(tune, "entry", fake_tuner)
    problems, told = [], []
    for _ in range(12):
        code = tune.run(OPS, Filters(), device="cpu", budget=1)
        told.append(capsys.readouterr().err)
        problems.append([int(n) for n in re.findall(r"time in (\d+) problems", told[-1])])
        if "goes on" not in told[-1]:
            break
        assert code in (0, 3)
    assert 3 <= len(told) < 12
    assert "6 of 6 classes measured" in told[-1]
    # Every command takes up where the one before it ended; there are 6 problems of each dtype.
    assert problems[0][0] == 6
    assert sum(before[-1] > after[0] for before, after in pairwise(problems) if after) >= 2


def test_the_lab_itself_measures_tiles(lab_here: Any, folders: Path) -> None:
    file = folders / "mine.json"
    done = lab_here(*command("--out", str(file)))
    assert done.returncode == 0, done.stderr
    assert "3 of 3 classes measured" in done.stderr
    # Beside other load no number is good enough for a change.
    assert tile(tuned.load(file), 64) in (Tile(64, 2), Tile(64, 8))
    assert not (folders / "config").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rms_norm", "--device", "cpu"], "which rms_norm cannot be tuned on: Triton"),
        (["rms_nrom"], "op: got 'rms_nrom', expected one of: add_rms_norm, "),
        (["rms_norm", "--device", "cuda:99"], "device: got 'cuda:99', expected one of: cpu"),
        ([OPS, "--device", "cpu", "--dtype", "int8"], "dtype: got 'int8'"),
        ([OPS, "--device", "cpu", "--direction", "bwd"], "direction: got 'bwd'"),
        ([str(Path(OPS).with_name("toy_ops.py"))], "toy_ops.py can be tuned: no OpSpec"),
    ],
)
def test_what_cannot_be_tuned_is_a_usage_error(
    arguments: list[str], words: str, capsys: Any, folders: Path
) -> None:
    from fuselab.command_line.cli import command as fuselab

    assert fuselab(["tune", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.skipif(os.environ.get("CUDA_VISIBLE_DEVICES") == "", reason="no device to hide")
def test_without_a_gpu_the_default_says_so(
    capsys: Any, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from fuselab.command_line.cli import command as fuselab

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert fuselab(["tune", "rms_norm"]) == 2
    assert "device: got 'cpu'" in capsys.readouterr().err


def test_groups_end_with_the_time() -> None:
    group = Group("op", "c", "float32", "fwd", "contiguous", "cpu", ("a",))
    end = monotonic() + 0.05
    taken = 0
    for _ in tune._in_time([group] * 100, end):
        taken += 1
        sleep(0.02)
    assert 1 <= taken <= 4


def slot(names: Mapping[str, Tile], cases: tuple[str, ...] = ("few", "many")) -> Slot:
    group = Group("op", "", "float32", "fwd", "contiguous", "cuda:0", tuple(names))
    return Slot(KEY, "float32", 64, names, tuple(replace(group, case=case) for case in cases), ())


TILES = {"now": Tile(64, 8), "a": Tile(64, 4), "b": Tile(128, 4)}


def measured(at: Slot, medians: Mapping[str, Mapping[str, float | str]]) -> dict[str, Any]:
    """Measurements by case and tile; samples scatter by half a percent, a text is an error."""
    scatter = 1 + 0.005 * np.random.default_rng(0).standard_normal(60)
    found: dict[str, Any] = {}
    for group in at.groups:
        found[group.case] = {}
        for name, us in medians[group.case].items():
            cell = group.cell(name)
            found[group.case][name] = (
                Measurement(cell, Status.ERROR, us)
                if isinstance(us, str)
                else Measurement(
                    cell, Status.OK, timer="cupti", samples_us=tuple((us * scatter).tolist())
                )
            )
    return found


@pytest.mark.parametrize(
    ("few", "many", "expected"),
    [
        ((5.0, 4.0, 3.9), (20.0, 20.1, 26.0), "a"),  # b is slower where there are many rows
        ((5.0, 4.0, 3.5), (20.0, 20.0, 20.0), "b"),
        ((5.0, 4.97, 5.02), (20.0, 19.8, 19.9), "now"),  # within noise and margin
        ((1.80, 1.60, 1.70), (2.0, 2.0, 2.0), "now"),  # below what two runs differ by
        ((5.0, "does not fit", 4.0), (20.0, 15.0, 18.0), "b"),
        (("does not fit", 5.0, 4.0), (20.0, 15.0, 30.0), "a"),
        (("broken", "broken", "broken"), (1.0, 1.0, 1.0), "now"),
    ],
)
def test_a_tile_is_taken_if_it_is_faster_somewhere_and_slower_nowhere(
    few: tuple[Any, ...], many: tuple[Any, ...], expected: str
) -> None:
    at = slot(TILES)
    times = {c: dict(zip(TILES, us, strict=True)) for c, us in (("few", few), ("many", many))}
    choice = tune._choice(at, measured(at, times))
    assert choice.name == expected
    assert bool(choice.reason) == isinstance(few[0], str)
    assert set(choice.times) == {"few", "many"}


def test_an_entry_of_the_user_survives_in_a_class_that_did_not_change() -> None:
    from fuselab.worker.operators import specs

    spec = specs.load(OPS)["double"]
    assert spec.tuning
    keys = [(d, s) for d in tuned.DIRECTIONS for s in tuned.ELEMENT_SIZES]
    entries = (Entry(30, Tile(32, 1)), Entry(200, Tile(64, 2)), Entry(None, Tile(128, 4)))
    present = Table("G", dict.fromkeys(keys, entries))

    def choice(row: int | None, name: str) -> Choice:
        return Choice(replace(slot(TILES), row=row), name, {})

    same = tune._table(present, "G", spec.tuning, [choice(64, "now"), choice(None, "now")])
    assert same.entries == present.entries
    new = tune._table(present, "G", spec.tuning, [choice(256, "a"), choice(None, "b")])
    assert new.entries[KEY] == (
        *(Entry(30, Tile(32, 1)), Entry(64, Tile(64, 2))),
        *(Entry(256, TILES["a"]), Entry(None, TILES["b"])),
    )
    assert new.entries["bwd", 4] == present.entries["bwd", 4]


def test_every_tile_of_the_operators_is_asked_for_once_and_has_its_cases() -> None:
    pytest.importorskip("triton")
    from fuselab.worker.operators import specs

    tiles = specs.load(specs.TILES)["rms_norm"]
    plain = specs.load()["rms_norm"]
    assert plain.tuning
    present = specs.present_table("rms_norm", plain.tuning, "NVIDIA H200")
    filters = Filters(device="cuda:0")
    slots = tune._slots(plain, plain.tuning, present, "", filters)
    assert [s.dtype for s in slots][:: len(plain.tuning.classes) * 2] == list(tune.DTYPES)
    impls, cases = {i.name for i in tiles.implementations}, {c.name for c in tiles.cases}
    for one in slots:
        assert 2 < len(one.tiles) <= 20
        assert one.groups
        assert one.proofs
        for group in (*one.groups, *one.proofs):
            assert set(group.impls) <= impls
            assert group.case in cases
            assert all("triton" in name and "/" not in name for name in group.impls)
    total = sum(len(g.impls) for s in slots for g in s.groups)
    assert total <= 1700


def test_the_landscape_has_every_tile(lab_faked: Any, folders: Path) -> None:
    out = folders / "land"
    done = lab_faked(*command("--landscape", str(out)))
    assert done.returncode == 0, done.stderr
    assert f"landscape in {out}" in done.stderr
    lands = json.loads((out / "landscape.json").read_text())["landscapes"]
    assert [land["row"] for land in lands] == [64, 256, None]
    first = lands[0]
    assert first["kept"] == "64-2w"
    assert {spot["tile"] for spot in first["spots"]} >= {"64-2w", "64-8w"}
    table = (out / "landscape.md").read_text()
    assert re.search(r"\| 64-2w \*\*kept\*\* \| 20.06 \|", table)
    assert "does not fit" in table
    assert "is incorrect on 3x255" in table
    assert "rows up to 256" in (out / "landscape-fwd-float32.svg").read_text()


def test_a_file_is_no_folder_for_a_landscape(folders: Path, capsys: Any) -> None:
    from fuselab.command_line.cli import command as fuselab

    (folders / "taken").write_text("")
    assert fuselab(["tune", OPS, "--device", "cpu", "--landscape", str(folders / "taken")]) == 2
    assert "--landscape: got" in capsys.readouterr().err
