"""Comparison: verdicts, every reason for none, exit codes, and how often it errs."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fuselab.command_line.cli import command
from fuselab.model import Group, Measurement, Proof, Status
from fuselab.planning.plan import ceiling_group
from fuselab.statistics.comparison import Verdict, compare, differences, pair, summary
from fuselab.storage.store import Store

GROUP = Group("norm", "4x61", "float32", "fwd", "contiguous", "cuda:0", ("eager", "fast"))
CPU = replace(GROUP, device="cpu")
STEADY = tuple(1 + 0.0001 * i for i in range(-20, 21))


def ok(us: float, impl: str = "fast", group: Group = GROUP, **fields) -> Measurement:
    fields = {"timer": "wall" if group.device == "cpu" else "cupti", **fields}
    samples = fields.pop("samples_us", tuple(us * step for step in STEADY))
    return Measurement(group.cell(impl), Status.OK, samples_us=samples, **fields)


def only(a: Measurement | None, b: Measurement | None, **options):
    (found,) = compare(pair([a] if a else [], [b] if b else []), **options)
    return found


@pytest.mark.parametrize(
    ("group", "a_us", "b_us", "verdict"),
    [
        (GROUP, 100.0, 100.0, "same"),
        (GROUP, 100.0, 102.9, "same"),
        (GROUP, 100.0, 103.1, "slower"),
        (GROUP, 103.1, 100.0, "faster"),
        (GROUP, 102.9, 100.0, "same"),
        (GROUP, 5.0, 5.29, "same"),  # 6 %, but less than 0.3 us
        (GROUP, 5.0, 5.31, "slower"),
        (CPU, 100.0, 104.9, "same"),
        (CPU, 100.0, 105.1, "slower"),
        (CPU, 5.0, 5.29, "slower"),
        (CPU, 105.1, 100.0, "faster"),
    ],
)
def test_the_margin(group, a_us, b_us, verdict):
    found = only(ok(a_us, group=group), ok(b_us, group=group))
    assert (found.verdict, found.reason) == (verdict, "")
    assert found.ratio == pytest.approx(b_us / a_us)
    assert found.low <= found.ratio <= found.high
    assert (found.a_us, found.b_us) == (pytest.approx(a_us), pytest.approx(b_us))


def clock(mhz: float, method: str | None = None) -> Proof:
    return Proof(sm_mhz=(mhz - 300, mhz, mhz + 1), method=method)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (None, ok(1.0), "A has no such cell"),
        (ok(1.0), None, "B has no such cell"),
        (
            ok(1.0),
            Measurement(GROUP.cell("fast"), Status.CRASHED, "signal 11"),
            "B is crashed: signal 11",
        ),
        (
            replace(ok(1.0), status=Status.NOISY, reason="other load"),
            ok(2.0),
            "A is noisy: other load",
        ),
        (ok(1.0, samples_us=(0.0, 1.0)), ok(2.0), "A has a sample of 0 us"),
        (ok(1.0), ok(2.0, group=CPU), "device of A: cuda, of B: cpu"),
        (ok(1.0), ok(2.0, timer="host"), "timer of A: cupti, of B: host"),
        (
            ok(1.0, proof=Proof(method="1")),
            ok(2.0, proof=Proof(method="2")),
            "method of A: 1, of B: 2",
        ),
        (ok(1.0), ok(2.0, proof=Proof(method="2")), "method of A: not told, of B: 2"),
        (
            ok(1.0, proof=clock(1980)),
            ok(2.0, proof=clock(1935)),
            "SM clock of A: 1980 MHz, of B: 1935 MHz",
        ),
    ],
)
def test_what_cannot_be_compared_is_unknown_and_says_why(a, b, reason):
    found = only(a, b)
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, reason)
    assert found.ratio is found.low is found.high is found.p is None


def test_like_clocks_methods_and_another_gpu_of_the_kind_are_no_obstacle():
    one = ok(100.0, proof=clock(1980, "1"))
    other = ok(100.0, group=replace(GROUP, device="cuda:1"), proof=clock(1950, "1"))
    assert only(one, other).verdict is Verdict.SAME
    assert only(one, ok(100.0, proof=Proof(method="1"))).verdict is Verdict.SAME


def test_of_several_devices_each_is_compared_with_itself():
    a = [ok(100.0), ok(100.0, group=CPU)]
    found = compare(pair(a, [ok(100.0, group=CPU), ok(120.0)]))
    assert [(c.device, str(c.verdict)) for c in found] == [("cuda:0", "slower"), ("cpu", "same")]
    (missing,) = (c for c in compare(pair(a, a[:1])) if c.verdict is Verdict.UNKNOWN)
    assert (missing.device, missing.reason) == ("cpu", "B has no such cell")


def test_a_difference_that_may_be_chance_is_unknown():
    few = only(ok(0, samples_us=(10.0, 11.0, 12.0)), ok(0, samples_us=(11.5, 12.5, 13.5)))
    assert (few.verdict, few.reason) == ("unknown", "beyond the margin, but not beyond chance")
    # The ranks are sure of two peaks that both are later; on which the median lies is chance.
    a = (*np.linspace(100, 101, 46), *np.linspace(110, 111, 44))
    b = (*np.linspace(101, 102, 44), *np.linspace(120, 121, 46))
    mixed = only(ok(0, samples_us=a), ok(0, samples_us=b))
    assert mixed.p < 0.01
    assert mixed.low <= 1 <= mixed.high
    assert mixed.verdict is Verdict.UNKNOWN


def test_samples_that_could_not_show_the_margin_do_not_show_that_all_is_the_same():
    wide = tuple(float(x) for x in np.random.default_rng(0).lognormal(5, 0.3, 30))
    found = only(ok(0, samples_us=wide), ok(0, samples_us=wide))
    assert (found.verdict, found.reason) == ("unknown", "the interval is wider than the margin")
    tiny = tuple(us / 100 for us in wide)
    assert only(ok(0, samples_us=tiny), ok(0, samples_us=tiny)).verdict is Verdict.SAME


def test_p_grows_with_the_number_of_cells():
    groups = [replace(GROUP, case=f"c{i}") for i in range(50)]
    a = [ok(100.0, group=group) for group in groups]
    b = [ok(120.0 if i == 0 else 100.0, group=group) for i, group in enumerate(groups)]
    alone, among = compare(pair(a[:1], b[:1]))[0], compare(pair(a, b))[0]
    assert among.p == pytest.approx(50 * alone.p)
    assert among.verdict is Verdict.SLOWER


def test_the_mean_is_geometric_over_decided_cells_and_needs_most_of_them():
    groups = [replace(GROUP, case=f"c{i}") for i in range(20)]
    a = [ok(100.0, group=group) for group in groups]
    b = [ok(200.0 if i % 2 else 50.0, group=group) for i, group in enumerate(groups)]
    whole = summary(compare(pair(a, b)))
    assert whole.ratio == pytest.approx(1.0)
    assert whole.counts == {"slower": 10, "faster": 10, "unknown": 0, "same": 0}
    one, two = summary(compare(pair(a, b[1:]))), summary(compare(pair(a, b[2:])))
    assert (one.n, one.total, one.complete) == (19, 20, True)
    assert one.ratio == pytest.approx(math.exp(math.log(2) / 19))
    assert (two.n, two.total, two.complete) == (18, 20, False)
    nothing = summary([])
    assert (nothing.ratio, nothing.n, nothing.complete) == (None, 0, False)


def test_how_environments_differ():
    a = {"id": "1", "torch": "2.13.0", "gpu": {"name": "H200", "sms": 132}, "cuda": "13.0"}
    b = {"id": "2", "torch": "2.14.0", "gpu": {"name": "H200", "sms": 78}, "triton": "3.6"}
    assert differences([a], [b]) == [
        ("torch", "2.13.0", "2.14.0"),
        ("gpu.sms", "132", "78"),
        ("cuda", "13.0", "none"),
        ("triton", "none", "3.6"),
    ]
    assert differences([a, b], [b])[0] == ("torch", "2.13.0 or 2.14.0", "2.14.0")
    assert differences([a], [{**a, "id": "3"}]) == []


def measured(rng, true_us, shift: float) -> list[Measurement]:
    """One run of GPU cells: 5 rounds of 20 calls, skewed by 1 %, a step of 32 ns.

    `shift` is the deviation between the true times of a cell in two runs of the same code.
    """
    found = []
    for index, us in enumerate(true_us):
        rounds = us * rng.lognormal(0, shift) * rng.lognormal(0, 0.002, (5, 1))
        samples = rounds * np.exp(np.abs(rng.normal(0, 0.01, (5, 20))))
        ticks = tuple(float(us) for us in (samples / 0.032).round().ravel() * 0.032)
        found.append(ok(0, group=replace(GROUP, case=f"c{index}"), samples_us=ticks))
    return found


@pytest.mark.parametrize(
    ("slowdown", "shift", "verdict", "least"),
    [
        (1.0, 0.0, "same", 1.0),
        (1.0, 0.005, "same", 1.0),
        (1.01, 0.005, "same", 0.99),
        (1.05, 0.0, "slower", 1.0),
        (1.05, 0.005, "slower", 0.95),
        (1 / 1.05, 0.005, "faster", 0.95),
    ],
)
def test_how_often_it_errs_in_20_reruns_of_40_cells(slowdown, shift, verdict, least):
    rng = np.random.default_rng(20)
    true_us = np.geomspace(20, 2000, 40)
    counts: Counter[str] = Counter()
    for _ in range(20):
        a, b = measured(rng, true_us, shift), measured(rng, true_us * slowdown, shift)
        counts.update(summary(compare(pair(a, b))).counts)
    assert counts[verdict] >= least * 20 * 40, counts


def store(folder, *measurements: Measurement, **environment) -> str:
    with Store.open(folder) as run:
        if environment:
            run.set_environment(environment)
        for m in measurements:
            cell = m.cell
            group = Group(
                *(cell.op, cell.case, cell.dtype, cell.direction, cell.layout, cell.device),
                (cell.impl,),
            )
            run.write(group, [m])
    return str(folder)


def copies(us: float) -> Measurement:
    return ok(us, "copy", ceiling_group("cuda:0"))


ABSENT = Measurement(GROUP.cell("triton"), Status.UNSUPPORTED, "no triton")
BASE = (ok(100.0), ok(300.0, "eager"), ABSENT, copies(1500.0))


@pytest.fixture
def base(tmp_path) -> str:
    return store(tmp_path / "a", *BASE, torch="2.13.0", python="3.12")


@pytest.mark.parametrize(
    ("other", "code", "words"),
    [
        (BASE, 0, ["0 slower, 0 faster, 0 unknown, 2 same", "1.000 (geometric mean of 2/2 cells)"]),
        ((ok(90.0), *BASE[1:]), 0, ["| faster", "1 faster"]),
        ((ok(110.0), *BASE[1:]), 1, ["| slower", "| 1.100 |", "1 slower"]),
        (BASE[1:], 3, ["| unknown [1]", "[1] B has no such cell", "1/2 cells", "too few: a gate"]),
        ((ok(110.0),), 1, ["too few"]),
        ((*BASE[:3], copies(1600.0)), 0, ["tell of the machine: 1.067", "0 slower"]),
        ((), 3, ["n/a (geometric mean of 0/3 cells)"]),
    ],
)
def test_exit_codes_and_what_is_printed(base, tmp_path, capsys, other, code, words):
    b = store(tmp_path / "b", *other)
    assert command(["compare", base, b]) == code
    out = capsys.readouterr().out
    assert all(word in out for word in words), out
    assert ("1 unsupported on both sides left out" in out) == (ABSENT in other)


@pytest.mark.parametrize(
    ("allow", "code"), [((), 1), (("--allow", "33%"), 1), (("--allow", "34"), 0)]
)
def test_a_share_may_be_slower_and_its_commands_are_printed(tmp_path, capsys, allow, code):
    groups = [replace(GROUP, case=f"wild:{rows}x577") for rows in (1, 2, 3)]
    eager = [ok(100.0, "eager", group) for group in groups]
    own = [ok(us, "fast", group) for us, group in zip((150.0, 100.0, 50.0), groups, strict=True)]
    run = store(tmp_path / "run", *eager, *own)
    assert command(["compare", run, "--impl-a", "eager", "--impl-b", "fast", *allow]) == code
    out = capsys.readouterr().out
    assert "B is slower in 33.3% of the 3 decided cells" in out
    assert "fuselab run norm --case wild:1x577 --dtype " in out
    assert "--impl eager --impl fast\n" in out


def test_what_is_the_same_has_no_line_of_its_own(base, capsys):
    assert command(["compare", base, base]) == 0
    out = capsys.readouterr().out
    assert "norm" not in out
    assert "environment" not in out


def test_json_is_strict_and_whole(base, tmp_path, capsys):
    b = store(tmp_path / "b", ok(110.0), torch="2.14.0", python="3.12")
    assert command(["compare", base, b, "--json"]) == 1

    def refuse(constant: str):
        raise AssertionError(constant)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["a"] == {"name": base, "impl": None}
    slower, missing, absent = found["cells"]
    assert (slower["impl_a"], slower["verdict"], slower["reason"]) == ("fast", "slower", "")
    assert slower["ratio"] == pytest.approx(1.1)
    assert (missing["verdict"], missing["ratio"], missing["p"]) == ("unknown", None, None)
    assert absent["reason"] == "B has no such cell"
    assert found["summary"]["counts"] == {"slower": 1, "faster": 0, "unknown": 2, "same": 0}
    assert (found["summary"]["n"], found["summary"]["total"]) == (1, 3)
    assert found["summary"]["complete"] is False
    assert found["environment"] == [{"name": "torch", "a": "2.13.0", "b": "2.14.0"}]


def test_runs_their_files_and_exports_compare_alike(base, tmp_path, capsys):
    assert command(["export", base, "--samples"]) == 0
    lines = tmp_path / "a.jsonl"
    lines.write_text(capsys.readouterr().out)
    b = store(tmp_path / "b", ok(110.0), *BASE[1:], torch="2.14.0", python="3.12")
    tables = []
    for a in (base, f"{base}/run.sqlite", str(lines)):
        assert command(["compare", a, f"{b}/run.sqlite"]) == 1
        tables.append(capsys.readouterr().out.splitlines())
    assert tables[0] == tables[1]
    assert [line for line in tables[0] if "environment" in line] == [
        "environment: torch is 2.13.0 in A, 2.14.0 in B"
    ]
    apart = set(tables[0]) ^ set(tables[2])
    assert all(line.startswith("environment: ") for line in apart)
    assert any(line.startswith("environment: id is ") for line in apart)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["no such file or folder", "run.sqlite"]),
        ('{"op": "norm"}\n', ["line 1", "no 'samples_us'", "--samples"]),
        ("<html>\n", ["line 1"]),
        (b"\xff\xfe", ["utf-8"]),
        ("TWICE", ["norm/fast/fwd/4x61/float32/contiguous/cuda:0 twice"]),
    ],
)
def test_a_file_that_is_no_export_with_samples_is_exit_3(base, tmp_path, capsys, text, words):
    file = tmp_path / "cells.jsonl"
    if text == "TWICE":
        command(["export", base, "--samples"])
        text = 2 * capsys.readouterr().out
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert command(["compare", base, str(file)]) == 3
    message = capsys.readouterr().err
    assert all(word in message for word in ("cells.jsonl", *words)), message


def test_two_implementations_of_one_run(base, capsys):
    assert command(["compare", base, "--impl-a", "eager", "--impl-b", "fast"]) == 0
    assert "eager -> fast" in capsys.readouterr().out
    assert command(["compare", base, "--impl-a", "fast", "--impl-b", "eager", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (cell,) = found["cells"]
    assert (cell["impl_a"], cell["impl_b"], cell["ratio"]) == ("fast", "eager", pytest.approx(3))
    assert found["ceilings"]["total"] == 0


def test_implementations_measured_apart_are_not_compared(tmp_path, capsys):
    folder = store(tmp_path / "a", ok(100.0), torch="2.13.0")
    store(folder, ok(300.0, "eager"), torch="2.14.0")
    assert command(["compare", folder, "--impl-a", "fast", "--impl-b", "eager"]) == 3
    assert "environment of A: " in capsys.readouterr().out


def test_filters_choose_the_cells(base, tmp_path, capsys):
    b = store(tmp_path / "b", ok(110.0), *BASE[1:])
    assert command(["compare", base, b, "--impl", "eager"]) == 0
    assert command(["compare", base, b, "--dtype", "fp32", "--op", "norm"]) == 1
    capsys.readouterr()
    assert command(["compare", base, b, "--op", "ceiling"]) == 0
    assert "1/1 cells" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["B: got nothing", "--impl-a and --impl-b"]),
        (["--impl-a", "fast"], ["--impl-b: got nothing"]),
        (["--impl-b", "fast"], ["--impl-a: got nothing"]),
        (["--impl-a", "fast", "--impl-b", "cudnn"], ["impl: got 'cudnn'", "fast, eager"]),
        (["--impl-a", "fast", "--impl-b", "eager", "--impl", "x"], ["--impl: got 'x'"]),
        (["BASE", "--dtype", "bf16"], ["dtype: got 'bfloat16', expected one of: float32"]),
        (["BASE", "--direction", "up"], ["direction: got 'up', expected one of: fwd"]),
    ],
)
def test_what_cannot_be_asked_is_exit_2(base, capsys, arguments, words):
    assert command(["compare", base, *(base if x == "BASE" else x for x in arguments)]) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message
