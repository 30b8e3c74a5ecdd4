"""Reruns of the same cells: what is measured again, and how the errors of compare are counted."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuselab.model import Group, Measurement, Status
from fuselab.storage.store import Store

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
same_again = import_module("same_again")

GROUP = Group("norm", "c0", "float32", "fwd", "contiguous", "cuda:0", ("fast", "ceiling"))
STEADY = tuple(1 + 0.0001 * i for i in range(-20, 21))


def ok(us: float, case: str = "c0", impl: str = "fast") -> Measurement:
    found = replace(GROUP, case=case).cell(impl)
    return Measurement(found, Status.OK, timer="cupti", samples_us=tuple(us * s for s in STEADY))


def noisy(us: float, case: str) -> Measurement:
    return replace(ok(us, case), status=Status.NOISY, reason="median known to 1.7%")


def counts(runs: list[list[Measurement]]) -> tuple[Any, Any]:
    three = [same_again.comparisons(runs, factor) for factor in (1.0, 1.05, 1.01)]
    return same_again.seen(runs, *three), same_again.exit_codes(three[0])


def test_each_run_is_compared_with_the_first_and_with_the_one_before() -> None:
    found = same_again.comparisons([[ok(100.0 + i)] for i in range(4)], 1.0)
    pairs = [(round(one.a_us) - 100, round(one.b_us) - 100) for (one,) in found]
    assert pairs == [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]
    assert len(same_again.comparisons([[ok(1.0)]] * 20, 1.0)) == 37


def test_verdicts_are_counted_by_cell() -> None:
    absent = Measurement(GROUP.cell("cudnn"), Status.UNSUPPORTED, "no cudnn")
    steady, jump = [ok(us, "a") for us in (100, 100, 101)], [ok(us, "b") for us in (5, 5, 9)]
    runs = [[a, b, noisy(50, "c"), absent] for a, b in zip(steady, jump, strict=True)]
    cells, codes = counts(runs)
    a, b, c = cells.values()
    assert (a.plain, a.large, a.small) == ({"same": 3}, {"slower": 3}, {"same": 3})
    assert (b.plain, b.large) == ({"same": 1, "slower": 2}, {"same": 1, "slower": 2})
    assert (c.plain, c.us, c.scatter) == ({"unknown": 3}, pytest.approx(50), 0)
    assert a.us == pytest.approx(100.333, rel=1e-4)
    assert a.scatter == pytest.approx(np.std([100, 100, 101], ddof=1) / 100.333, rel=1e-4)
    assert codes == {1: 2, 3: 1}


def bars(cells: Any, codes: Any, reruns: int = 20) -> dict[str, bool]:
    return dict(same_again.bars(cells.values(), reruns, codes))


def test_the_bars_count_what_they_say() -> None:
    runs = [[ok(100, f"c{i}") for i in range(39)] + [ok(5, "tiny")] for _ in range(20)]
    cells, codes = counts(runs)
    assert all(bars(cells, codes).values())
    assert "0 of 1480" in next(text for text in bars(cells, codes) if "different" in text)
    large = next(text for text in bars(cells, codes) if "5 %" in text)
    assert f"{39 * 37} of {39 * 37}, 100.00%" in large, "5 us are not among them"
    assert list(bars(cells, codes, reruns=19).values()).count(False) == 1
    runs[-1] = [ok(104, m.cell.case) if m.cell.case != "tiny" else m for m in runs[-1]]
    missed = [text for text, good in bars(*counts(runs)).items() if not good]
    assert [text.split(":")[0] for text in missed] == [
        "called different",
        "gate failures",
        "1 % slow-down called slower",
    ]
    assert "(exit code 1: 2, 3: 0)" in missed[1]


def test_nothing_decided_reaches_no_bar() -> None:
    found = bars(*counts([[noisy(50, "c")]] * 3), reruns=3)
    assert not any(found.values()), found


def stored(out: Path, runs: list[list[Measurement]]) -> None:
    for index, run in enumerate(runs):
        with Store.open(out / f"{index:02}") as store:
            for m in run:
                store.write(replace(GROUP, case=m.cell.case), [m])
        (out / f"{index:02}" / same_again.FINISHED).write_text('["norm"]')


def test_judge_reads_finished_reruns_without_ceilings(tmp_path: Path, capsys: Any) -> None:
    runs = [[ok(100.0), ok(9.0 * i, impl="ceiling"), noisy(5.0, "c1")] for i in (1, 2, 3)]
    stored(tmp_path, runs)
    (tmp_path / "02" / same_again.FINISHED).unlink()
    assert same_again.judge(tmp_path) == 1
    out = capsys.readouterr().out
    assert "2 reruns of 2 cells (at least 20 of 40): FAIL" in out
    assert "unknown: 1\n  1: A is noisy: median known to N%" in out
    assert "5 % slow-down found: 1 of 1, 100.00% of all from 20 us on (at least 95%): pass" in out
    assert "ceiling" not in out
    (tmp_path / "01" / same_again.FINISHED).unlink()
    with pytest.raises(SystemExit, match="1 finished reruns"):
        same_again.judge(tmp_path)


def test_reruns_of_another_gpu_are_not_compared_with_these(tmp_path: Path, capsys: Any) -> None:
    stored(tmp_path / "a", [[ok(100.0)], [ok(100.0)]])
    stored(tmp_path / "b", [[ok(150.0)], [ok(150.0)]])
    same_again.judge(tmp_path / "a", tmp_path / "b")
    out = capsys.readouterr().out
    assert "gate failures: 0 of 2 comparisons" in out
    assert "4 reruns of 1 cells" in out


def test_measure_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: Any) -> None:
    codes, started = iter([0, 1, 130, 0, 0]), []

    def run(words: list[str], **options: Any) -> Any:
        folder = Path(words[-1])
        folder.mkdir(parents=True, exist_ok=True)
        started.append(folder.name)
        assert words[1:5] == ["-m", "fuselab", "run", "norm"]
        return subprocess.CompletedProcess(words, next(codes))

    monkeypatch.setattr(same_again.subprocess, "run", run)
    assert same_again.measure(tmp_path, 4, ["norm"]) == 130
    assert same_again.measure(tmp_path, 4, ["norm"]) == 0
    assert started == ["00", "01", "02", "02", "03"]
    with pytest.raises(SystemExit, match="other arguments"):
        same_again.measure(tmp_path, 4, ["rope"])


def test_the_cells_of_the_gpu_are_forty() -> None:
    assert len(same_again.CASES) * len(same_again.IMPLS) * 2 == same_again.CELLS
