"""fuselab study methods: what a method is held against, and the verb on one size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuselab.command_line.cli import command
from fuselab.counters import durations, ncu
from fuselab.planning.plan import PlanError
from fuselab.study import methods as measuring
from fuselab.study import run
from fuselab.study.record import METHODS, NCU, REFERENCE, Record, Row, names, summary, to_json_lines
from fuselab.study.record import to_markdown as page
from fuselab.study.run import cases, methods
from fuseline import table

ROWS = (
    Row("8x8", "eager", REFERENCE, (10.0, 10.0, 10.0)),
    Row("8x8", "compile", REFERENCE, (5.0, 5.0, 5.0)),
    Row("8x8", "eager", "loop", (8.0, 9.0, 10.0)),
    Row("8x8", "compile", "loop", (6.0, 6.0, 6.0)),
    Row("16x8", "eager", "loop", (1.0, 1.0, 1.0)),
    Row("8x8", "eager", "torch.utils.benchmark", error="RuntimeError: no"),
)


def test_a_method_is_held_against_the_reference_cell_by_cell() -> None:
    found = summary("loop", ROWS)
    assert found.cells == 2  # 16x8 has no reference
    assert (found.least, found.most) == pytest.approx((-0.1, 0.2))
    assert found.bias == pytest.approx(0.05)
    assert found.more_us == pytest.approx(0.0)  # 1 us less and 1 us more
    assert found.scatter == pytest.approx((1 / 9 + 0) / 2)
    assert found.ratio == pytest.approx(9 / 6)
    assert summary(REFERENCE, ROWS).ratio == pytest.approx(2)


def test_a_method_without_numbers_says_why() -> None:
    assert summary("torch.utils.benchmark", ROWS).error == "RuntimeError: no"
    assert summary("pytest-benchmark", ROWS).error == "no cell"
    text = page(Record("softmax", "cpu", {"torch": "2"}, ROWS, "others were busy"))
    assert "| `torch.utils.benchmark` | RuntimeError: no |" in text
    assert "| `loop` | 2 | +5.0% | -10.0% | +20.0% | +0.00 | 5.6% | 1.50 |" in text
    assert "Noisy: others were busy." in text
    assert "| 8x8 | eager | 10.00 | 9.00 |" in text


def test_a_line_has_all_repeats() -> None:
    line = json.loads(to_json_lines(Record("softmax", "cpu", {}, ROWS)).splitlines()[2])
    assert (line["method"], line["us"], line["dtype"]) == ("loop", [8.0, 9.0, 10.0], "float32")


def test_every_method_is_measured_or_ncus() -> None:
    assert {m.name for m in METHODS} == {*measuring.MEASURES, NCU}
    assert names("cpu") == [REFERENCE, "pytest-benchmark", "loop", "torch.utils.benchmark"]
    assert names("cuda:0") == [m.name for m in METHODS]


def test_sizes_go_from_the_smallest_to_the_largest() -> None:
    spec = table.load()["softmax"]
    found = cases(spec, "cpu", 10)
    assert (found[0], found[-1], len(set(found))) == ("128x128", "8192x512", 10)
    elements = [int(rows) * int(columns) for rows, columns in (one.split("x") for one in found)]
    assert elements == sorted(elements)
    with pytest.raises(PlanError, match=r"--sizes: got 1000, expected at most \d+"):
        cases(spec, "cpu", 1000)
    with pytest.raises(PlanError, match="expected an operator with sizes in suite fusion"):
        cases(table.load()["conv_add"], "cpu", 1)


class Clock:
    """Time that passes in calls alone."""

    def __init__(self, us: float) -> None:
        self.now, self.calls, self._us = 0.0, 0, us

    def __call__(self) -> float:
        return self.now

    def work(self) -> None:
        self.calls += 1
        self.now += self._us / 1e6


@pytest.mark.parametrize(
    ("us", "rounds", "loops"), [(1.0, 10000, 10), (3.0, 16667, 2), (50e3, 5, 1)]
)
def test_rounds_are_calibrated_as_pytest_benchmark_does(
    us: float, rounds: int, loops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(us)
    monkeypatch.setattr(measuring, "perf_counter", clock)
    assert measuring._by_pytest(clock.work) == pytest.approx(us)
    calibrating = 1 if loops == 1 else 1 + loops
    assert clock.calls == pytest.approx(calibrating + rounds * loops, abs=2 * loops)


def test_a_loop_is_divided_by_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1000.0)
    monkeypatch.setattr(measuring, "perf_counter", clock)
    assert measuring._by_loop(clock.work, measuring.torch.device("cpu")) == pytest.approx(1000)
    assert clock.calls == pytest.approx(102, abs=1)


def test_the_study_wraps_a_call_with_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(measuring.torch.cuda, name, lambda name=name: seen.append(name))
    measuring._waiting(lambda: seen.append("call"), empty_cache=True)()
    measuring._waiting(lambda: seen.append("call"), empty_cache=False)()
    waits = ["synchronize", "call", "synchronize"]
    assert seen == [*waits, "empty_cache", *waits]


def test_ncu_times_each_cell_as_the_lab_rotated_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[durations.Block] = []

    def measure(blocks: list[durations.Block], seconds: float) -> list[durations.Durations]:
        asked.extend(blocks)
        return [durations.Durations((2.0, 3.0), (1, 1)), durations.Durations(reason="no kernel")]

    monkeypatch.setattr(durations, "measure", measure)
    monkeypatch.setattr(ncu, "program", lambda: "/ncu")
    assert run._by_ncu("softmax", {"8x8": 7}, "cuda:0", 2) == [
        Row("8x8", "eager", NCU, (2.0, 3.0)),
        Row("8x8", "compile", NCU, error="no kernel"),
    ]
    assert {(b.impl, b.sets, b.watched) for b in asked} == {("eager", 7, 2), ("compile", 7, 2)}
    monkeypatch.setattr(ncu, "program", lambda: "")
    assert {r.error for r in run._by_ncu("softmax", {"8x8": 7}, "cuda:0", 2)} == {ncu.NO_NCU}


def test_what_was_not_reached_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    found = methods("softmax", "cpu", 1, 2, 0.1, {})
    assert {row.error for row in found.rows} == {"not done after 0.1 s (--timeout)"}
    assert command(["study", "methods", "--op", "softmx"]) == 2
    assert "got 'softmx', expected one of" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("plain_compiler")
def test_one_size_by_every_method(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["study", "methods", "--op", "pointwise_chain", "--sizes", "1", "--repeats", "2"]
    assert command([*arguments, "--device", "cpu", "--out", str(tmp_path)]) == 0
    assert "| `loop` | 2 |" in capfd.readouterr().out
    lines = (tmp_path / "methods-pointwise_chain-cpu.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(r["method"], r["impl"]) for r in rows] == [
        (name, impl) for name in names("cpu") for impl in ("eager", "compile")
    ]
    for row in rows:
        assert (row["case"], row["error"], len(row["us"])) == ("128x128", "", 2)
        assert all(0.5 < us < 1e5 for us in row["us"])
    assert (tmp_path / "methods-pointwise_chain-cpu.md").read_text().count("| 128x128 |") == 2
