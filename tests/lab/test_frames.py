"""A stored run in Python, and its records in pandas and Parquet."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import fuselab
from fuselab.command_line.cli import command
from fuselab.model import Group, Measurement, Proof, Status
from fuselab.records.frames import NoLibraryError, to_pandas
from fuselab.records.metrics import COLUMNS
from fuselab.storage.store import Store, StoreError

pandas = pytest.importorskip("pandas")
parquet = pytest.importorskip("pyarrow.parquet")
GROUP = Group("norm", "4x61", "float32", "fwd", "contiguous", "cuda:0", ())


@pytest.fixture
def run(tmp_path: Path) -> str:
    with Store.open(tmp_path / "run") as store:
        store.set_environment({"gpu": "H100"})
        found = [
            Measurement(
                *(GROUP.cell("eager"), Status.OK),
                timer="cupti",
                samples_us=(10.0, 11.0, 12.5),
                ideal_bytes=2**40,
                proof=Proof(sm_mhz=(1980.0, 1900.0), launches=3),
            ),
            Measurement(GROUP.cell("mine"), Status.UNSUPPORTED, "no such kernel"),
        ]
        store.write(GROUP, found)
    return str(tmp_path / "run")


def test_a_run_is_read_in_python(run: str, tmp_path: Path) -> None:
    found = fuselab.read(run)
    assert [m.cell.impl for m in found.measurements] == ["eager", "mine"]
    assert found.environments[0]["gpu"] == "H100"
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == list(COLUMNS)
    assert frame["median_us"][0] == 11.0
    assert frame["median_us"].isna().tolist() == [False, True]
    assert frame.query("status == 'ok'")["ideal_bytes"].item() == 2**40
    assert command(["share", run, str(tmp_path / "one.sqlite")]) == 0
    assert fuselab.read(tmp_path / "one.sqlite").records[0]["launches"] == 3
    with pytest.raises(StoreError, match="no such folder"):
        fuselab.read(tmp_path / "none")


@pytest.mark.parametrize("samples", [(), ("--samples",)])
def test_parquet_has_the_types_of_the_columns_whatever_they_hold(
    run: str, tmp_path: Path, samples: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "made" / "run.parquet"
    assert command(["export", run, "--format", "parquet", "--out", str(file), *samples]) == 0
    table = parquet.read_table(file)
    kinds = {field.name: str(field.type) for field in table.schema}
    assert (kinds["op"], kinds["samples"], kinds["energy_j"]) == ("string", "int64", "double")
    assert (kinds["version"], kinds["launches"], kinds["gbps"]) == ("string", "int64", "double")
    assert command(["export", run, *samples]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [{k: v for k, v in row.items() if k in lines[0]} for row in table.to_pylist()] == lines
    assert ("samples_us" in kinds) == bool(samples)


def test_text_formats_go_to_a_file_too(run: str, tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    assert command(["export", run, "--format", "csv", "--out", str(file)]) == 0
    assert file.read_text().startswith("op,impl,")


def test_what_is_missing_is_named(
    run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["export", run, "--format", "parquet"]) == 2
    assert "--out: got nothing" in capsys.readouterr().err
    assert command(["export", run, "--format", "csv", "--samples"]) == 2
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NoLibraryError, match=r"pip install 'fuseline\[data\]'"):
        to_pandas([])
    assert command(["export", run, "--format", "parquet", "--out", "x.parquet"]) == 2
    assert "pyarrow is not installed" in capsys.readouterr().err
