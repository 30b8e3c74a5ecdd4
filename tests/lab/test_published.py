"""Published numbers: the data as their sources have them, and what a run has beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuselab.command_line.cli import command
from fuselab.model import Group, Measurement, Status
from fuselab.published import tables
from fuselab.storage.store import Store

A100 = tables.load("study-a100")


def values(name: str, op: str, title: str = "") -> dict[str, tables.Value]:
    found = tables.load(name).tables
    of = next(t for t in found if t.op == op and title in t.title)
    return {value.case: value for value in of.numbers()}


def test_the_data_are_the_sources() -> None:
    """A few cells of each table kind, as the source prints them."""
    assert tables.names() == (
        *("rms-norm", "rms-norm-first", "study-a100", "study-first", "study-rtx3090"),
    )
    softmax = values("study-first", "softmax")
    assert (softmax["128x128"].ratio, softmax["128x2048"].ratio) == (5.03, 14.3)
    assert (softmax["128x128"].above, softmax["128x128"].below) == ("compile", "eager")
    assert softmax["65536x65536"].status == "no_number"
    assert values("study-first", "layer_norm")["65536x65536"].status == "out_of_memory"
    chain = values("study-rtx3090", "pointwise_chain")["8192x65536"]
    assert (chain.ratio, chain.above, chain.below) == (5.4504, "eager", "compile")
    heads = values("study-a100", "attention", "flash2 / eager, head dimension 64")
    assert heads["2x32x8192x64"].ratio == pytest.approx(17.7873)
    assert heads["32x32x8192x64"].status == "no_number"
    module = values("study-first", "multihead_attention")
    assert module["8x16x128-8heads"].ratio == 1.20
    norms = tables.load("rms-norm").tables
    assert [(t.dtype, t.direction) for t in norms[:3]] == [
        *(("float64", "fwd"), ("float64", "bwd"), ("float32", "fwd")),
    ]
    first = next(v for v in tables.load("rms-norm-first").tables[0].numbers() if v.below == "cuda")
    assert (first.case, first.us, first.ratio) == ("4x128x32", 15.247, 60.303 / 15.247)


@pytest.mark.parametrize("name", tables.names())
def test_every_table_is_whole_and_says_where_it_is_from(name: str) -> None:
    found = tables.load(name)
    assert all((found.source, found.gpu, found.software, found.method, found.note))
    for table in found.tables:
        assert [len(line) for line in table.values] == [len(table.columns)] * len(table.rows)
        assert len(table.values) == len(table.rows) > 0
        for value in (v for line in table.values for v in line):
            assert value in ("no_number", "out_of_memory") or value > 0
        labelled = bool(table.above) or table.of_times
        assert bool(list(table.numbers())) == labelled
        assert labelled or "Relative A100-RTX3090" in table.title


def store(folder: Path, gpu_factor: float = 1.0) -> str:
    """A run in which compile takes 1 us, and eager twice what the A100 had of it."""
    with Store.open(folder) as run:
        for case, value in values("study-a100", "softmax").items():
            if value.ratio is None or not case.startswith(("128x", "256x")):
                continue
            group = Group("softmax", case, "float32", "fwd", "contiguous", "cuda:0", ("eager",))
            times = {"eager": 2 * gpu_factor * value.ratio, "compile": 1.0}
            run.write(
                group,
                [
                    Measurement(group.cell(n), Status.OK, timer="cupti", samples_us=(us,) * 5)
                    for n, us in times.items()
                ],
            )
    return str(folder)


def test_ratios_stand_beside_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [store(tmp_path / "one"), store(tmp_path / "two", 0.25)]
    assert command(["compare", "published:study-a100", *runs, "--op", "softmax", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gpu"] == "A100 40GB"
    made = [line for line in found["lines"] if line["n"]]
    assert [(line["n"], line["above"], line["below"]) for line in made] == [
        (20, "eager", "compile")
    ] * 2
    assert [line["measured"] / line["published"] for line in made] == pytest.approx([2.0, 0.5])
    # Twice as much is always above 1, also where the A100 has the same, or less.
    theirs = [
        v.ratio for c, v in values("study-a100", "softmax").items() if c[:4] in ("128x", "256x")
    ]
    assert made[0]["agree"] == sum(r is not None and r > 1.03 for r in theirs) / 20
    reasons = {line["reason"] for line in found["lines"] if not line["n"]}
    assert reasons == {"its source does not say which time is above which"}
    assert command(["compare", "published:study-a100", runs[0]]) == 0
    out = capsys.readouterr().out
    assert "| softmax  | fwd       | float32 | eager / compile" in out
    assert "not compared: layer_norm: the run has no layer_norm" in out
    assert "method: triton.testing.do_bench" in out


def test_times_stand_beside_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(tmp_path / "run") as run:
        group = Group("rms_norm", "4x128x32", "float32", "fwd", "contiguous", "cuda:0", ())
        run.write(
            group,
            [
                Measurement(group.cell(n), Status.OK, timer="cupti", samples_us=(us,) * 5)
                for n, us in {"eager": 60.303, "cuda": 15.247 / 10}.items()
            ],
        )
    run_ = str(tmp_path / "run")
    assert command(["compare", "published:rms-norm-first", run_, "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    (made,) = [line for line in lines if line["n"]]
    assert made["faster"] == pytest.approx(10.0)
    assert made["published"] == pytest.approx(60.303 / 15.247)
    assert made["measured"] == pytest.approx(10 * 60.303 / 15.247)
    reasons = [line["reason"] for line in lines if line["below"] == "triton"]
    assert "the run has no triton in its cases" in reasons
    assert "the run has none of its cases, bwd in float32" in reasons


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["published:nothing", "RUN"], "published: got 'nothing', expected one of: rms-norm"),
        (["published:rms-norm"], "got 0 runs, expected 1 to 4"),
        (["published:rms-norm", *["RUN"] * 5], "got 5 runs, expected 1 to 4"),
        (["published:rms-norm", "RUN", "--impl", "cuda"], "--impl: expected none beside"),
        (["published:rms-norm", "RUN", "--baseline", "x"], "--baseline: expected none beside"),
        (["published:rms-norm", "RUN", "--junit", "x"], "the options of a gate: expected none"),
        (["RUN", "RUN", "RUN"], "B: got 2 runs, expected one"),
    ],
)
def test_what_cannot_be_asked_is_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    run = store(tmp_path / "run")
    assert command(["compare", *(run if word == "RUN" else word for word in arguments)]) == 2
    assert words in capsys.readouterr().err


def test_nothing_to_compare_is_exit_3(tmp_path: Path) -> None:
    assert command(["compare", "published:rms-norm", store(tmp_path / "run")]) == 3
