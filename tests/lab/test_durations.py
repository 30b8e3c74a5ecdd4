"""Kernel times beside ncu's: which calls it watches, what its log says, the bar's arithmetic."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from fuselab.counters import durations, ncu
from fuselab.counters.durations import Block, Durations
from fuselab.model import Group, Measurement, Proof, Status
from fuselab.planning.plan import ceiling_group
from fuselab.storage.store import Store

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
against_ncu = import_module("against_ncu")

GROUP = Group("swish", "small", "float32", "fwd", "contiguous", "cuda:0", ("eager", "right"))
BLOCKS = [Block(GROUP, "eager", 20, 20, 2), Block(GROUP, "right", 6, 2, 2)]
HEADER = (
    "ID",
    "Process ID",
    "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "Kernel Name",
    durations.METRIC,
)


def log(kernels: list[tuple[int, str, str]]) -> str:
    """Play a log of `ncu --csv --page raw`: range, kernel and nanoseconds of each launch."""
    rows = [HEADER, ("", "", "", "", "", "ns")]
    for number, (index, name, ns) in enumerate(kernels):
        marked = f'7 ""<default domain>:fuselab-{index}:none:none:none:none:none:none""'
        rows.append((str(number), "41", "", marked, name, ns))
    body = "\n".join(",".join(f'"{text}"' for text in row) for row in rows)
    return f"==PROF== Connected to process 41\n{body}\n"


LOG = log([(0, "mul", "1,500"), (0, "sum", "500"), (1, "mul", "1600"), (1, "sum", "520")])
WHOLE = LOG + log([(1000, "norm", "3000"), (1001, "norm", "3100")]).split("\n", 3)[3]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: Any) -> Any:
    """Put a program in ncu's place that writes the log and the child's answers."""

    def set_up(text: str, answers: str | None = "[{}, {}]") -> Path:
        (tmp_path / "log").write_text(text)
        program = tmp_path / "ncu"
        program.write_text(
            f"#!{sys.executable}\n"
            "import pathlib, shutil, sys\n"
            "words = sys.argv[1:]\n"
            "if '--version' in words: sys.exit('')\n"
            f"pathlib.Path({str(tmp_path / 'words')!r}).write_text('\\n'.join(words))\n"
            f"shutil.copy({str(tmp_path / 'log')!r}, words[words.index('--log-file') + 1])\n"
            f"if {answers!r} is None: sys.exit(9)\n"
            f"pathlib.Path(words[-1]).write_text({answers!r})\n"
        )
        program.chmod(0o755)
        monkeypatch.setattr(ncu, "program", lambda: str(program))
        return tmp_path / "words"

    return set_up


def test_the_watched_calls_are_spread_over_the_block() -> None:
    assert durations.ranges(0, 20, 5) == {2: 0, 6: 1, 10: 2, 14: 3, 18: 4}
    assert durations.ranges(3, 6, 5) == {0: 3000, 1: 3001, 3: 3002, 4: 3003, 5: 3004}
    assert durations.ranges(1, 1, 1) == {0: 1000}


def test_the_kernels_of_each_call_are_summed(play: Any) -> None:
    words = play(WHOLE)
    first, second = durations.measure(BLOCKS, 30)
    assert first == Durations((pytest.approx(2.0), pytest.approx(2.12)), (2, 2))
    assert second == Durations((3.0, pytest.approx(3.1)), (1, 1))
    said = words.read_text().splitlines()
    named = [said[i + 1] for i, word in enumerate(said) if word == "--nvtx-include"]
    assert named == ["fuselab-0", "fuselab-1", "fuselab-1000", "fuselab-1001"]
    assert said[said.index("--metrics") + 1] == durations.METRIC
    assert [said[said.index(f"--{what}-control") + 1] for what in ("clock", "cache")] == 2 * [
        "none"
    ]


def test_what_has_no_duration_has_a_reason(play: Any) -> None:
    play(LOG, '[{}, {"error": "ValueError: no"}]')
    assert durations.measure(BLOCKS, 30)[1].reason == "ValueError: no"
    play(log([(0, "mul", "1500"), (1000, "norm", "3"), (1001, "norm", "3")]))
    first, second = durations.measure(BLOCKS, 30)
    assert (first.reason, second.reason) == ("ncu saw kernels in 1 of 2 calls", "")
    play(WHOLE.replace(durations.METRIC, "sm__cycles_elapsed.max"))
    assert "ncu gave no gpu__time" in durations.measure(BLOCKS, 30)[0].reason
    play("", None)
    assert {found.reason for found in durations.measure(BLOCKS, 30)} == {
        "the child ended with exit code 9: "
    }
    play("==ERROR== ERR_NVGPUCTRPERM - no permission\n", None)
    with pytest.raises(ncu.CounterError, match="NVreg_RestrictProfilingToAdminUsers"):
        durations.measure(BLOCKS, 30)


@pytest.fixture
def opened(monkeypatch: Any) -> list[str]:
    """Collect the NVTX ranges that are opened, in place of opening them."""
    names: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_start", names.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_end", lambda opened: None)
    return names


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_the_child_runs_the_block_of_the_lab(direction: str, toy: str, opened: list[str]) -> None:
    from fuselab.worker import child

    group = replace(GROUP, direction=direction, device="cpu", source=toy)
    task = {"group": vars(group), "impl": "right", "calls": 7, "sets": 3, "watched": 2}
    before = torch.is_grad_enabled()
    try:
        assert child.MODES["durations"](task, 4) == {"calls": 7}
    finally:
        torch.set_grad_enabled(before)
    assert opened == ["fuselab-4000", "fuselab-4001"]


def cell(us: float, impl: str = "right", group: Group = GROUP, **fields: Any) -> Measurement:
    proof = Proof(calls_per_round=20, sets=3, launches=2, kernels={"mul": 1, "sum": 1})
    fields = {"timer": "cupti", "proof": proof, **fields}
    return Measurement(group.cell(impl), Status.OK, samples_us=(us, us, us), **fields)


def test_cells_are_those_with_kernel_time_and_their_blocks_those_of_the_run() -> None:
    good = cell(3.0)
    others = [
        cell(3.0, "ceiling"),
        cell(3.0, "copy", ceiling_group("cuda:0")),
        cell(3.0, timer="graph"),
        replace(good, status=Status.NOISY, reason="hot"),
    ]
    assert against_ncu.timed([good, *others]) == [good]
    found = against_ncu.block(good, 5)
    assert (found.calls, found.sets, found.watched, found.impl) == (20, 3, 5, "right")
    assert found.group.cell("right") == good.cell
    many = [cell(float(us), group=replace(GROUP, case=f"c{us}")) for us in (9, 1, 5, 3, 7)]
    kept = [m.samples_us[0] for m in against_ncu.chosen(many, 3)]
    assert kept == [9, 1, 5]


def row(lab_us: float, ncu_us: float = 100.0, more_us: float = 0.0) -> Any:
    return against_ncu.Row("fwd small", lab_us, ncu_us, 2, 1, more_us)


@pytest.mark.parametrize(
    ("rows", "good", "words"),
    [
        ([row(103)] * 60, True, ["median |lab - ncu| / ncu: 3.00%", "100.0%"]),
        ([row(97)] * 59, False, ["cells compared: 59 (at least 60): FAIL", "-3.00%"]),
        ([row(103.1)] * 60, False, ["3.10% (at most 3%): FAIL"]),
        ([row(101)] * 57 + [row(106)] * 3, True, ["95.0% (at least 95%): pass"]),
        ([row(101)] * 56 + [row(94)] * 4, False, ["93.3% (at least 95%): FAIL"]),
        ([row(101)] * 57 + [row(3.9, 2.0)] * 10, True, ["100.0% (at least"]),
        (
            [row(2.0, 2.8, 0.8)] * 40 + [row(100, 100.8, 0.8)] * 20,
            True,
            [
                "ncu: 0.00% (at most",
                "off ncu, 60 cells (all): median 28.57%, within 100.0%",
                "off ncu, 20 cells (kernels of 20 us and more): median 0.79%, within 100.0%",
            ],
        ),
        ([], False, ["no cell"]),
    ],
)
def test_the_bar(rows: list[Any], good: bool, words: list[str]) -> None:
    lines, reached = against_ncu.verdict(rows)
    assert reached is good
    assert all(word in "\n".join(lines) for word in words), lines


def test_the_tool_from_a_run_to_its_table(
    play: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    fill = Proof(calls_per_round=20, sets=3, launches=3, kernels={"Memset (Device)": 1})
    other = replace(GROUP, case="large")
    with Store.open(tmp_path / "run") as store:
        store.write(GROUP, [cell(2.0, "eager"), cell(9.0)])
        store.write(other, [cell(9.0, "eager", other, proof=fill)])
    spins = {
        key: {"us": [int(key.split("us")[0].split()[-1]) + 1.4]}
        for key in against_ncu.spins("cuda:0", 2)
    }
    (tmp_path / "run" / against_ncu.KEPT).write_text(json.dumps(spins))
    monkeypatch.setattr(against_ncu, "own_of_lab", lambda device: against_ncu.Own(1.0, 0.7))
    play(WHOLE)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "run"), "--calls", "2"])
    assert against_ncu.main() == 1
    lines = capsys.readouterr().out.splitlines()
    (eager,) = (line for line in lines if "eager" in line)
    (right,) = (line for line in lines if "right" in line)
    assert lines[1].endswith("+1.40 us, the lab 1.0000 and +0.70 us; 0.70 us a kernel less")
    assert " ".join(eager.split()) == "fwd small float32 eager 2.000 2.060 1.400 +1.340 +203.0% 2"
    assert " ".join(right.split()[4:]) == "9.000 3.050 0.700 +6.650 +283.0% 2 (ncu 1) *"
    assert "1 cells left out: ncu does not time the driver's copies and fills" in lines
    assert "within max(5%, 2 us): 50.0% (at least 95%): FAIL" in lines
    monkeypatch.setattr(against_ncu, "measure", lambda *_: pytest.fail("asked ncu a second time"))
    assert against_ncu.main() == 1
    assert capsys.readouterr().out.splitlines() == lines
