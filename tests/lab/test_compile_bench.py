"""fuselab compile-bench: the table, and the verb on three subjects."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from fuselab.command_line.cli import command
from fuselab.compiling import subjects
from fuselab.compiling.bench import bench
from fuselab.compiling.record import Row, row, to_markdown
from fuselab.explain.record import AS_IS, STATIC, Break, Mode, Size
from fuselab.worker.tensors.inputs import nbytes
from fuseline import table

MOST_BYTES = 64 << 20


def test_subjects_are_all_operators_and_the_blocks():
    assert sorted(subjects.names()) == sorted({*table.load(), *subjects.BLOCKS})


@pytest.mark.parametrize("name", subjects.names())
def test_no_subject_is_larger_than_a_cpu_compiles_in_seconds(name: str):
    target = subjects.subject(name, "cpu")
    assert nbytes(target.inputs(target.sizes[-1])) <= MOST_BYTES


def test_a_row_has_what_the_modes_saw():
    eager = Mode(AS_IS, sizes=(Size("8", 1.0, 90.0, 0.0),), kernels={"eager": ("a", "b")})
    broken = (Break("why", "f.py:1", ""),)
    compiled = Mode(
        STATIC, sizes=(Size("8", 9.0, 90.0, 1e-7),), kernels={"cpp": ("c",)}, breaks=broken
    )
    made = row("mlp", (eager, compiled), (20.0, 5.0), 1.5, 0.25)
    assert made == Row("mlp", "8", 1.5, 0.25, 2, 1, 20.0, 5.0, 1, 1e-7)
    assert "| mlp | 8 | 1.50 | 0.25 | 2 | 1 | 20.0 | 5.0 | 4.00 | 1 | 1.0e-07 |" in to_markdown(
        [made], {"torch": "2.13"}
    )


def test_noisy_times_say_why():
    modes = (Mode(AS_IS, kernels={}), Mode(STATIC, sizes=(Size("8", 9.0, 90.0, 0.0),)))
    made = row("mlp", modes, (20.0, 5.0), 1.5, None, "others were busy")
    table = to_markdown([made], {})
    assert "| 4.00 (noisy) |" in table
    assert table.endswith("\n\n- mlp: noisy: others were busy\n")
    assert "noisy" not in to_markdown([replace(made, noise="")], {})


def test_the_noise_of_both_processes_is_told(monkeypatch: pytest.MonkeyPatch):
    mode = asdict(Mode(STATIC, sizes=(Size("8", 9.0, 90.0, 0.0),)))
    cold = {"first_s": 2.0, "modes": [mode, mode], "us": [2.0, 1.0], "noise": "cold"}
    answers = iter([{"softmax": cold}, {"softmax": {"first_s": 1.0, "noise": "warm"}}])
    monkeypatch.setattr("fuselab.compiling.bench._compiled", lambda *_: (next(answers), ""))
    (found,) = bench(["softmax"], "cpu", 1.0)
    assert found.noise == "cold; warm"


def test_what_raises_has_no_figures():
    failed = row("mlp", (Mode(AS_IS, error="ValueError: no"), Mode(STATIC)), (0.0, 0.0), 0.0, None)
    assert failed.error == "ValueError: no"
    assert "| mlp | ValueError: no |" in to_markdown([failed], {})


def test_what_was_not_reached_says_so():
    (found,) = bench(["softmax"], "cpu", seconds=0.1)
    assert found.error == "not done after 0.1 s (--timeout)"


def test_an_unknown_subject(capfd: pytest.CaptureFixture[str]):
    assert command(["compile-bench", "conv"]) == 2
    assert "got 'conv', expected one of: add_rms_norm" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("plain_compiler")
def test_operators_and_blocks(tmp_path, capfd: pytest.CaptureFixture[str]):
    arguments = ["compile-bench", "norm_chain", "norm_residual", "--device", "cpu"]
    assert command([*arguments, "--json", "--out", str(tmp_path)]) == 0
    rows = {r["subject"]: r for r in json.loads(capfd.readouterr().out)["rows"]}
    assert list(rows) == ["norm_chain", "norm_residual"]
    assert rows["norm_chain"]["after"] == 1 < rows["norm_chain"]["before"] == 6
    for found in rows.values():
        assert found["cold_s"] > found["warm_s"] > 0  # the second process finds the caches full
        assert found["breaks"] == 0
        assert 1 < found["compiled_us"] < 1e6
        assert found["difference"] < 1e-5
    assert (tmp_path / "compile-bench-cpu.md").read_text().count("\n| norm_") == 2
