"""fuselab train-bench: what all variants share, the table, and a short training by each."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from fuselab.command_line.cli import command
from fuselab.training import setting, variants
from fuselab.training.bench import bench, to_markdown
from fuselab.training.record import Missing, Trained, apart

SMALL = setting.SETTINGS["small"]


def trained(variant: str, *losses: float) -> Trained:
    return Trained(variant, "torch", losses, (1.0, 0.25, 0.25), 1000, "")


def test_weights_and_tokens_are_the_same_each_time():
    first, second = (setting.weights(SMALL) for _ in range(2))
    assert sum(w.size for w in first.values()) == SMALL.parameters
    assert all(np.array_equal(first[name], second[name]) for name in first)
    for a, b in zip(setting.batches(SMALL, 3), setting.batches(SMALL, 3), strict=True):
        assert a.shape == (SMALL.batch, SMALL.length + 1)
        assert 0 <= a.min() <= a.max() < SMALL.vocab
        assert np.array_equal(a, b)


def test_losses_that_are_apart_or_not_numbers_are_named():
    rows = [trained("eager", 3.0, 2.0, 1.0), trained("near", 3.0, 2.0, 1.0 + 9e-6)]
    assert apart(rows) == []
    far = [trained("far", 3.0, 2.0001, 1.0), trained("nan", 3.0, float("nan"), 1.0)]
    assert apart([*rows, *far]) == ["far", "nan"]
    assert "More than 1e-05 from eager: far, nan." in to_markdown([*rows, *far], "small", "cpu")


def test_what_did_not_run_says_why():
    table = to_markdown([Missing("jax", "No module named 'jax'")], "small", "cpu")
    assert "| jax | No module named 'jax' |" in table
    (row,) = bench(["eager"], "small", 1, "cpu", seconds=0.1)
    assert row == Missing("eager", "not done after 0.1 s (--timeout)")


def test_noisy_steps_say_why():
    noisy = replace(trained("jax", 3.0), noise="others were busy")
    table = to_markdown([trained("eager", 3.0), noisy], "small", "cpu")
    assert table.count("(noisy)") == 1
    assert "\n- jax: noisy: others were busy\n" in table


@pytest.mark.parametrize(
    ("seconds", "load", "noise"),
    [
        ((1.0,) * 20, "", ""),
        ((1.0,) * 20, "others were busy", "others were busy"),
        ((1.0, 4.0) * 10, "", "the median is known to "),
    ],
)
def test_a_training_is_noisy_beside_others_or_if_steps_scatter(
    seconds, load, noise, monkeypatch: pytest.MonkeyPatch
):
    class Load:
        def __init__(self, threads):
            assert threads is None
            self.disturbance = load

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    found = replace(trained("jax", 1.0), seconds=seconds)
    monkeypatch.setattr(variants, "OtherLoad", Load)
    monkeypatch.setattr(variants, "_jax", lambda *_: found)
    said = variants.train("jax", "small", 1, "cpu").noise
    assert said.startswith(noise) if noise else said == ""


def test_an_unknown_variant(capfd: pytest.CaptureFixture[str]):
    assert command(["train-bench", "--variant", "keras"]) == 2
    assert "keras" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("plain_compiler")
def test_variants_have_the_losses_of_eager(
    tmp_path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    # Of so many kernels the headers pay.
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "1")
    variants = ["eager", "compile + fuseline", *(["jax"] if find_spec("jax") else [])]
    chosen = [part for v in variants for part in ("--variant", v)]
    arguments = ["train-bench", "--steps", "8", "--device", "cpu", *chosen]
    assert command([*arguments, "--json", "--out", str(tmp_path)]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [row["variant"] for row in rows] == variants
    losses = np.array([row["losses"] for row in rows])
    assert losses.shape == (len(variants), 8)
    assert abs(losses - losses[0]).max() <= 1e-5
    assert (losses[:, -1] < losses[:, 0]).all()
    patched = {row["variant"]: row["note"] for row in rows}
    assert not patched["eager"]
    assert "RMSNorm" in patched["compile + fuseline"]
    assert (tmp_path / "train-small-cpu.svg").read_text().count("compile + fuseline")


def test_a_variant_that_takes_too_long_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--variant", "eager", "--device", "cpu", "--timeout", "1", "--steps", "9999"]
    assert command(["train-bench", *arguments]) == 3  # nothing is left to show
    assert "eager: not done after 1 s" in capfd.readouterr().err


@pytest.mark.parametrize(("failed", "code"), [(True, 1), (False, 0)])
def test_a_variant_that_fails_is_exit_1_and_one_not_installed_is_none(
    failed: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [trained("eager", 2.0, 1.0), Missing("jax", "why", failed)]
    monkeypatch.setattr("fuselab.commands.inside.train_bench.bench", lambda *_: rows)
    assert command(["train-bench", "--device", "cpu"]) == code


def test_a_size_of_a_gpus_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["train-bench", "--size", "full", "--device", "cpu"]) == 2
    assert "--size: got 'full' on cpu" in capfd.readouterr().err
