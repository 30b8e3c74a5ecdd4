"""Tables of launch parameters: their file, where it is looked for, what a wrong one says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuseline.core.selection import rules, tuned
from fuseline.core.selection.tuned import Entry, Table, Tile, TunedError

SHIPPED = sorted(rules.OPS.glob("*/tuned/*.json"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(tuned.FOLDER, raising=False)
    return tmp_path


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """A folder as operators ship it, with the nearest table in it."""
    tuned.save(table("NVIDIA H200", Tile(1024, 4)), tmp_path / "shipped" / "nvidia-h200.json")
    return tmp_path / "shipped"


def table(gpu: str, tile: Tile) -> Table:
    entries = (Entry(tile.size, tile), Entry(None, Tile(4096, 8)))
    keys = [(d, s) for d in tuned.DIRECTIONS for s in tuned.ELEMENT_SIZES]
    return Table(gpu, dict.fromkeys(keys, entries), {"measured": "2026-11-22"})


@pytest.mark.parametrize("file", SHIPPED, ids=lambda f: f"{f.parent.parent.name}/{f.stem}")
def test_shipped_tables_are_as_tune_would_write_them(file: Path, tmp_path: Path) -> None:
    found = tuned.load(file)
    assert tuned.file_name(found.gpu) == file.name
    tuned.save(found, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == file.read_text()
    for entries in found.entries.values():
        assert tuned.merged(entries) == entries


def test_every_operator_with_tables_has_the_nearest() -> None:
    assert SHIPPED
    for folder in {file.parent for file in SHIPPED}:
        assert (folder / tuned.file_name(tuned.NEAREST)).is_file()


def test_a_row_gets_the_first_tile_that_reaches_to_it() -> None:
    found = table("G", Tile(1024, 4))
    assert [found.tile("fwd", 2, n).size for n in (1, 1024, 1025, 1 << 20)] == [
        *(1024, 1024, 4096, 4096)
    ]


def test_the_users_table_wins_over_the_shipped_one(home: Path, shipped: Path) -> None:
    assert tuned.find("op", shipped, "NVIDIA H200").tile("fwd", 2, 1) == Tile(1024, 4)
    file = home / "config" / "fuseline" / "tuned" / "op" / "nvidia-h200.json"
    tuned.save(table("NVIDIA H200", Tile(512, 2, weight_first=True)), file)
    assert tuned.find("op", shipped, "NVIDIA H200").tile("fwd", 2, 1) == Tile(512, 2, 1, 1, True)


def test_the_variable_names_another_folder(
    home: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tuned.FOLDER, str(home / "mine"))
    tuned.save(table("NVIDIA L4", Tile(256, 1)), home / "mine" / "op" / "nvidia-l4.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuned.find("op", shipped, "NVIDIA L4").gpu == "NVIDIA L4"


def test_a_relative_xdg_folder_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "somewhere")
    monkeypatch.delenv(tuned.FOLDER, raising=False)
    assert tuned.user_folder("op") == Path.home() / ".config" / "fuseline" / "tuned" / "op"


def nobody(uid: int) -> None:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


@pytest.mark.parametrize("op_folder", [None, "mine"])
def test_without_a_home_the_shipped_table_serves(
    home: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch, op_folder: str | None
) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", tuned.FOLDER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    if op_folder:
        monkeypatch.setenv(tuned.FOLDER, str(home / op_folder))
        tuned.save(table("NVIDIA H200", Tile(512, 2)), home / op_folder / "op/nvidia-h200.json")
    found = tuned.find("op", shipped, "NVIDIA H200").tile("fwd", 2, 1)
    assert found == (Tile(512, 2) if op_folder else Tile(1024, 4))
    assert len(tuned.user_files("op")) == (1 if op_folder else 0)


AS_ANOTHER = """
import os, sys
from pathlib import Path
from fuseline.core.selection import tuned
if os.getuid() == 0:
    os.setgroups([]); os.setgid(12345); os.setuid(12345)
assert not tuned.user_files("op")
print(tuned.find("op", Path(sys.argv[1]), "NVIDIA H200").gpu)
"""


def test_a_home_that_cannot_be_read_counts_as_empty(
    shipped: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    table_folder = other / ".config" / "fuseline" / "tuned" / "op"
    table_folder.mkdir(parents=True)
    (table_folder / "nvidia-h200.json").write_text("not to be read")
    monkeypatch.setenv("HOME", str(other))
    for name in ("XDG_CONFIG_HOME", tuned.FOLDER):
        monkeypatch.delenv(name, raising=False)
    readable = Path(tempfile.mkdtemp())
    try:
        shutil.copytree(shipped, readable / "shipped")
        readable.chmod(0o755)
        other.chmod(0o000)
        command = [sys.executable, "-c", AS_ANOTHER, str(readable / "shipped")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        other.chmod(0o700)
        shutil.rmtree(readable)
    assert done.stdout == "NVIDIA H200\n", done.stderr


def test_a_table_that_an_editor_of_windows_has_saved_is_read(home: Path, shipped: Path) -> None:
    file = home / "config" / "fuseline" / "tuned" / "op" / "nvidia-h200.json"
    tuned.save(table("NVIDIA H200", Tile(512, 2)), file)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert tuned.find("op", shipped, "NVIDIA H200").tile("fwd", 2, 1) == Tile(512, 2)


def test_an_unknown_gpu_gets_the_nearest_table_and_says_how_to_make_its_own(
    home: Path, shipped: Path
) -> None:
    with pytest.warns(RuntimeWarning, match=r"NVIDIA B300.*NVIDIA H200.*fuselab tune op$"):
        assert tuned.find("op", shipped, "NVIDIA B300").gpu == "NVIDIA H200"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuned.find("op", shipped, None).gpu == "NVIDIA H200"


def test_a_device_is_told_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    import torch

    from fuseline.ops.rms_norm import impl_triton

    impl_triton.table.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA B300")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            impl_triton.table(torch.device("cuda", 0))
    assert ["fuselab tune rms_norm" in str(one.message) for one in told] == [True]
    impl_triton.table.cache_clear()


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    *steps, last, value = path

    def change(body: dict[str, Any]) -> None:
        at: Any = body
        for step in steps:
            at = at[step]
        at[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("fwd", "2", 0, "size", 1000), ["fwd.2[0].size", "got 1000", "power of two"]),
        (_set("bwd", "8", 0, "warps", 64), ["bwd.8[0].warps", "got 64", "up to 32"]),
        (_set("fwd", "4", 0, "weight_first", 1), ["fwd.4[0].weight_first", "true or false"]),
        (_set("fwd", "4", 0, "stages", 0), ["fwd.4[0].stages", "got 0", "positive"]),
        (_set("fwd", "4", 0, "row", True), ["fwd.4[0].row", "got True"]),
        (_set("fwd", "4", 0, "wraps", 4), ["fwd.4[0].wraps", "unknown", "warps"]),
        (_set("fwd", "4", 0, {"row": 4, "size": 4}), ["fwd.4[0].warps", "missing"]),
        (_set("fwd", "4", 0, []), ["fwd.4[0]", "expected an object"]),
        (_set("fwd", "4", []), ["fwd.4", "expected a list"]),
        (_set("fwd", {}), ["fwd.2", "expected a list"]),
        (_set("fwd", "2", 1, "row", 512), ["fwd.2: row", "rising lengths, then null"]),
        (_set("fwd", "2", 0, "row", None), ["fwd.2: row", "rising lengths, then null"]),
    ],
)  # fmt: skip
def test_a_wrong_table_names_file_and_key(
    change: Callable[[dict[str, Any]], None], words: list[str], shipped: Path
) -> None:
    file = shipped / "nvidia-h200.json"
    body = json.loads(file.read_text())
    change(body)
    file.write_text(json.dumps(body))
    with pytest.raises(TunedError) as error:
        tuned.load(file)
    for word in (str(file), *words):
        assert word in str(error.value)


@pytest.mark.parametrize("text", ["", "[1", "[]"])
def test_what_is_no_table_names_the_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(TunedError, match=re.escape(str(tmp_path / "x.json"))):
        tuned.load(tmp_path / "x.json")


def test_a_table_is_written_whole_or_not_at_all(
    home: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shipped / "nvidia-h200.json"
    before = file.read_text()

    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        tuned.save(table("NVIDIA H200", Tile(64, 1)), file)
    assert file.read_text() == before
    assert [f.name for f in shipped.iterdir()] == [file.name]


def test_neighbours_that_say_the_same_are_one_entry() -> None:
    a, b = Tile(1024, 4), Tile(2048, 8)
    entries = (Entry(64, a), Entry(128, a), Entry(256, b), Entry(None, b))
    assert tuned.merged(entries) == (Entry(128, a), Entry(None, b))


def test_a_tile_has_a_name_of_its_own() -> None:
    tiles = [Tile(s, w, st, p, f) for s in (64, 128) for w in (1, 2) for st in (1, 2)
             for p in (1, 2) for f in (False, True)]  # fmt: skip
    assert len({str(tile) for tile in tiles}) == len(tiles)
    assert str(Tile(2048, 4, 3, 2, True)) == "2048-4w-3s-2p-first"
