"""fuselab tune --from: which classes of calls of a run get a rule, and what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuselab.command_line.cli import command
from fuselab.model import Group, Measurement, Status
from fuselab.storage.store import Store
from fuseline.core.selection import rules, tuned
from fuseline.ops.log_softmax.op import SELECTOR

GPU = {"device": "cuda", "compute_capability": "9.0", "gpu": "NVIDIA H200", "torch": "2.11.0"}
STEADY = tuple(1 + 0.0001 * i for i in range(-20, 21))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a run: (case, dtype, direction, us of cuda, us or status of aten) a cell."""
    monkeypatch.setenv(tuned.FOLDER, str(tmp_path / "own"))

    def write(*cells: tuple) -> str:
        folder = tmp_path / "run"
        with Store.open(folder) as store:
            store.set_environment(GPU)
            for case, dtype, direction, *times in cells:
                group = Group("log_softmax", case, dtype, direction, "contiguous", "cuda:0",
                              ("cuda", "aten"))  # fmt: skip
                store.write(
                    group,
                    [_measured(group, i, us) for i, us in zip(group.impls, times, strict=True)],
                )
        return str(folder)

    return write


def _measured(group: Group, impl: str, us) -> Measurement:
    if isinstance(us, Status):
        return Measurement(group.cell(impl), us, "why")
    samples = tuple(us * step for step in STEADY)
    return Measurement(group.cell(impl), Status.OK, samples_us=samples, timer="cupti")


def cells(columns: int, *times, dtype: str = "float64", direction: str = "fwd"):
    return [(f"wild:{rows}x{columns}", dtype, direction, *t)
            for rows, t in zip((3, 87, 700, 5000), times, strict=False)]  # fmt: skip


def learned(folder: str, *more: str) -> tuple[int, list]:
    code = command(["tune", "log_softmax", "--from", folder, *more])
    file = rules.user_file("log_softmax", "sm_90")
    facts = SELECTOR.auto.facts
    return code, [*rules.load(file, facts, SELECTOR.names)] if file.is_file() else []


def test_a_class_in_which_it_is_faster_everywhere_gets_a_rule(run, capsys) -> None:
    folder = run(
        *cells(20000, (10, 5), (40, 30), (90, 81)),
        *cells(20000, (10, 5), (40, 30), (90, 89), dtype="float32"),  # one is the same
        *cells(20000, (10, 5), (40, 30), direction="bwd"),  # two are too few
        *cells(300, (10, 5), (40, 30), (90, 120)),  # slower in one
        *cells(3000, (10, 5), (40, 30), (90, 81), (90, Status.INCORRECT)),
        *cells(70000, (10, 5), (40, 30), (90, 81), (90, Status.UNSUPPORTED)),
    )
    code, found = learned(folder)
    assert code == 0
    assert sorted(map(str, found)) == [
        f"dtype float64, columns {span}: aten (run {folder}, gpu NVIDIA H200, torch 2.11.0, "
        "cells 3, ratio 0.696, worst 0.9)"
        for span in ("16385 to 65536", "65537 to 262144")
    ]
    said = capsys.readouterr()
    assert said.out.count("log_softmax fwd: dtype float64") == 2
    assert "5 classes have 3 decided cells; 2 rules" in said.err


def test_rows_tell_classes_apart_only_if_they_are_named(run, capsys) -> None:
    few, many = (f"wild:{rows}x20000" for rows in (8, 87))
    several = [(few, "float64", "fwd", 12, 23)]
    several += [(many.replace("87", str(n)), "float64", "fwd", 44, 34) for n in (87, 99, 1000)]
    folder = run(*several)
    assert learned(folder) == (0, [])
    code, (found,) = learned(folder, "--by", "rows", "--by", "columns")
    assert code == 0
    assert list(found.where) == ["dtype", "rows", "columns"]
    assert str(found.where["rows"]) == "65 to 1024"
    assert "--by rows: a result of log_softmax then depends on rows" in capsys.readouterr().err


def test_what_is_known_to_be_bad_stays(run, tmp_path: Path) -> None:
    folder = run(*cells(20000, (10, 5), (40, 30), (90, 81)))
    file = rules.user_file("log_softmax", "sm_90")
    file.parent.mkdir(parents=True)
    bad = {"direction": "bwd", "where": {}, "impl": ["aten"], "bad": "NaN", "report": "address"}
    old = {"direction": "fwd", "where": {}, "impl": ["aten"], "evidence": {"run": "old"}}
    file.write_text(json.dumps({"rules": [old, bad]}))
    found = learned(folder)[1]
    assert [(one.direction, one.bad) for one in found] == [("fwd", ""), ("bwd", "NaN")]
    other = tmp_path / "other.json"
    assert command(["tune", "log_softmax", "--from", folder, "--out", str(other)]) == 0
    assert json.loads(other.read_text())["machine"] == "sm_90"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tune", "softmax", "--from", "RUN"), "has no cell of softmax"),
        (("tune", "log_softmax", "--by", "rows"), "--by is of --from"),
        (("tune", "log_softmax", "--from", "nowhere"), "nowhere"),
        (("tune", "log_softmax", "--from", "RUN", "--by", "row"), "rows"),
    ],
)
def test_mistakes_are_named(run, capsys, arguments, words) -> None:
    folder = run(*cells(20000, (10, 5)))
    assert command([a.replace("RUN", folder) for a in arguments]) in (2, 3)
    assert words in capsys.readouterr().err


def test_a_run_of_nothing_that_auto_takes(run, capsys) -> None:
    folder = run(("wild:3x9", "float32", "fwd", Status.CRASHED, 3.0))
    assert command(["tune", "log_softmax", "--from", folder]) == 2
    assert "none of cuda, cpu ran" in capsys.readouterr().err
