"""Slow counters: what they read, why they cannot, how they are stored, and what is refused."""

from __future__ import annotations

import errno
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuselab.command_line.cli import command
from fuselab.commands.measuring import count
from fuselab.counters import Task, counted, launch, ncu, perf_event, traffic, uncounted
from fuselab.counters.compile_time import CompileTime
from fuselab.counters.energy import joules_per_call
from fuselab.counters.instructions import Instructions
from fuselab.counters.ncu import NCU
from fuselab.model import Count, Group, Measurement, Status
from fuselab.records import metrics
from fuselab.records.columns import COUNTED
from fuselab.report.build import build
from fuselab.report.html import to_html
from fuselab.report.shown import Shown
from fuselab.report.text import to_markdown, to_terminal
from fuselab.storage.store import Store
from fuselab.worker import child

GROUP = Group("swish", "small", "float32", "fwd", "contiguous", "cpu", ("eager", "right"))

# What ncu 2025.3.1 wrote on an H200: forward and backward of F.rms_norm, backward of our CUDA
# kernels, (4, 128, 1024) bfloat16; only columns that nobody reads are cut.
RECORDED = Path(__file__).parent / "ncu"
# Like it, with figures that are easy to add up.
RANGES = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
SHOWN = {
    "dram__bytes_read.sum": "Mbyte",
    "dram__bytes_write.sum": "byte",
    "gpu__time_duration.sum": "ns",
    "lts__t_sectors_srcunit_tex_op_read.sum": "sector",
    "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum": "sector",
    "lts__t_sectors_srcunit_tex_op_red.sum": "sector",
    "lts__t_sectors_srcunit_tex_op_atom.sum": "sector",
    "smsp__inst_executed.sum": "inst",
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": "inst",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": "inst",
}
KERNELS = [
    (0, "mul<float>(float*, float)", ["1.5", "1,000", "2,500", "100", "50", *"00", "7", "3", "4"]),
    (0, "sum", ["0.5", "24", "1500", "300", "30", "0", "0", "3", "10", "0"]),
    (1, "sum", ["2", "8", "1000", "10", "0", "0", "0", "1", "1", "1"]),
]


def raw_page(kernels: Any = KERNELS) -> str:
    flops = [m for m in ncu.metrics_of(["measured_flops"]) if m not in SHOWN]
    lines = [
        ["ID", "Kernel Name", RANGES, *SHOWN, *flops],
        ["", "", "", *SHOWN.values(), *["inst"] * len(flops)],
    ]
    for number, (index, name, values) in enumerate(kernels):
        marked = f'3 ""<default domain>:fuselab-{index}:none:none:none:none:none:none""'
        lines.append([str(number), name, marked, *values, *"0" * len(flops)])
    body = "\n".join(",".join(f'"{text}"' for text in line) for line in lines)
    return f"==PROF== Connected to process 7\n==PROF== Disconnected\n{body}\n"


def test_a_recorded_log_gives_each_call_its_kernels_and_their_sums() -> None:
    executed = ncu.parse((RECORDED / "kernel.csv").read_text())
    moved = ncu.parse((RECORDED / "application.csv").read_text())
    assert [len(executed[i]) for i in range(3)] == [len(moved[i]) for i in range(3)] == [1, 2, 2]
    assert [name.partition("<")[0] for name, _ in moved[2]] == [
        "void fuseline::bwd_kernel",
        "void fuseline::bwd_finish_kernel",
    ]
    counts = ncu.totals(executed[0]) | {
        n: c for n, c in ncu.totals(moved[0]).items() if n not in ncu.EXECUTED
    }
    assert {n: c.value for n, c in counts.items() if c.value is not None} == {
        "instructions": 447_488,
        "measured_flops": 394_752 + 2 * 526_848 + 1_048_576 + 2 * 131_072,
        "dram_read_bytes": 1_059_328,
        "dram_write_bytes": 0,
        "load_sectors": 35_416,
        "load_hit_rate": 2_352 / 35_416,
        "store_sectors": 33_280,
        "store_hit_rate": 1,
        "reduction_sectors": 0,
        "profiled_us": 4.32,
    }
    assert counts["reduction_hit_rate"].unavailable == "no such access, so no rate"
    assert ncu.totals(executed[2])["instructions"].value == 784_384 + 74_592


def test_a_metric_that_ncu_lacks_keeps_no_other_count_away() -> None:
    asked = [set(ncu.metrics_of(one.names)) for one in NCU]
    assert not any(a & b for i, a in enumerate(asked) for b in asked[:i])
    assert {name for one in NCU for name in one.names} == set(ncu.NAMES)
    (l1,) = [one for one in NCU if "l1_load_sectors" in one.names]
    assert all(name.startswith("l1_") for name in l1.names)
    hit, sectors = next(iter(ncu.RATES["l1_reduction_hit_rate"].items()))
    found = ncu.totals([("k", {hit: 1.0, sectors: 4.0})])
    assert found["l1_reduction_hit_rate"].value == 0.25
    assert "does not have the metric" in found["l1_reduction_sectors"].unavailable  # no atomics


def test_the_rate_of_a_kernel_is_over_its_launches() -> None:
    ((hits, sectors),) = ncu.RATES["load_hit_rate"].items()
    launches = [("k", {hits: 100.0, sectors: 100.0}), ("k", {hits: 0.0, sectors: 300.0})]
    found = ncu.totals([*launches, ("idle", {hits: 0.0, sectors: 0.0})])["load_hit_rate"]
    assert (found.value, found.parts) == (0.25, {"k": 0.25})


def test_ncu_sums_the_kernels_of_each_range_in_base_units() -> None:
    ranges = ncu.parse(raw_page())
    assert {index: len(kernels) for index, kernels in ranges.items()} == {0: 2, 1: 1}
    found = ncu.totals(ranges[0])
    values = {name: c.value for name, c in found.items() if c.value is not None}
    assert values == {
        "instructions": 10,
        "dram_read_bytes": 2e6,
        "dram_write_bytes": 1024,
        "load_sectors": 400,
        "reduction_sectors": 0,
        "load_hit_rate": pytest.approx((50 + 30) / 400),
        "measured_flops": 3 + 2 * 4 + 10,
        "profiled_us": pytest.approx(4.0),
    }
    assert found["dram_read_bytes"].parts == {KERNELS[0][1]: 1.5e6, "sum": 0.5e6}
    assert found["load_hit_rate"].parts == {KERNELS[0][1]: 0.5, "sum": 0.1}
    assert {c.source for c in found.values()} == {"ncu"}
    assert "does not have the metric" in found["store_sectors"].unavailable
    assert "no such access" in found["reduction_hit_rate"].unavailable
    assert set(found) == set(ncu.NAMES)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        *(("1,024", "byte", 1024), ("1.5", "Gbyte", 1.5e9), ("2", "Ksector", 2000)),
        *(("7", "inst", 7), ("4", "", 4)),
        *(("3", "us", 3), ("3", "nsecond", 0.003), ("3", "ms", 3000)),
    ],
)
def test_units_of_ncu(text: str, unit: str, value: float) -> None:
    assert ncu._number("m", text, unit) == pytest.approx(value)


@pytest.mark.parametrize(("text", "unit"), [("n/a", "byte"), ("1", "furlong")])
def test_what_ncu_should_not_say_is_named(text: str, unit: str) -> None:
    with pytest.raises(ncu.CounterError, match="dram_x: got"):
        ncu._number("dram_x", text, unit)


def test_a_log_that_is_no_table_is_an_error_and_an_empty_one_has_no_kernels() -> None:
    assert ncu.parse("==PROF== Disconnected\n") == {}
    with pytest.raises(ncu.CounterError, match="'Kernel Name'"):
        ncu.parse("No kernels were profiled.\n")


def fake_ncu(folder: Path, log: str, *, answers: bool) -> str:
    """A program that takes ncu's options, writes the log, and perhaps runs the rest."""
    (folder / "log").write_text(log)
    program = folder / "ncu"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, shutil, sys\n"
        "words = sys.argv[1:]\n"
        f"shutil.copy({str(folder / 'log')!r}, words[words.index('--log-file') + 1])\n"
        f"if not {answers}: sys.exit(9)\n"
        "tasks = json.loads(pathlib.Path(words[-2]).read_text())\n"
        "pathlib.Path(words[-1]).write_text(json.dumps([{} for _ in tasks]))\n"
    )
    program.chmod(0o755)
    return str(program)


def tasks() -> list[Task]:
    return [Task(GROUP, impl) for impl in GROUP.impls]


def test_one_child_under_ncu_counts_a_batch(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ncu, "program", lambda: fake_ncu(tmp_path, raw_page(), answers=True))
    first, second = NCU[0].count(tasks(), 30)
    assert (first["instructions"].value, second["instructions"].value) == (10, 1)


@pytest.mark.parametrize("answers", [True, False])
def test_without_permission_the_one_command_that_mends_it(
    answers: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    log = (
        "==PROF== Connected to process 7\n"
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
        "Performance Counters on the target device 0.\n"
    )
    monkeypatch.setattr(ncu, "program", lambda: fake_ncu(tmp_path, log, answers=answers))
    for counts in NCU[0].count(tasks(), 30):
        reasons = {c.unavailable for c in counts.values()}
        assert reasons == {ncu.NO_PERMISSION}
        assert {c.source for c in counts.values()} == {""}, "to be tried again once mended"
    assert "ERR_NVGPUCTRPERM" in ncu.NO_PERMISSION
    assert "NVreg_RestrictProfilingToAdminUsers=0" in ncu.NO_PERMISSION


def test_another_error_of_ncu_and_no_error_at_all(tmp_path: Path, monkeypatch: Any) -> None:
    error = "==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n"
    monkeypatch.setattr(ncu, "program", lambda: fake_ncu(tmp_path, error, answers=True))
    assert "LibraryNotLoaded" in NCU[0].count(tasks(), 30)[0]["instructions"].unavailable
    monkeypatch.setattr(ncu, "program", lambda: fake_ncu(tmp_path, "", answers=False))
    assert "exit code 9" in NCU[0].count(tasks(), 30)[1]["instructions"].unavailable


def test_missing_ncu_says_how_to_get_it(monkeypatch: Any) -> None:
    monkeypatch.setattr(ncu.shutil, "which", lambda name: None)
    monkeypatch.setattr(ncu, "PLACES", ())
    assert NCU[0].obstacle() == ncu.NO_NCU
    assert "apt-get install nsight-compute" in ncu.NO_NCU


def test_ncu_leaves_clocks_and_caches_alone_and_opens_a_range_a_cell() -> None:
    words = ncu.command("ncu", "kernel", ["m"], ["fuselab-0", "fuselab-1"], Path("log"))
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--cache-control") + 1] == "none"
    ranges = [words[i + 1] for i, word in enumerate(words) if word == "--nvtx-include"]
    assert ranges == ["fuselab-0", "fuselab-1"]


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EACCES, "perf_event_paranoid=2"), (errno.ENOENT, "virtual machine")],
)
def test_instructions_name_what_refuses_perf_event(
    number: int, words: str, monkeypatch: Any
) -> None:
    def refuse(attributes: bytearray, pid: int, cpu: int) -> int:
        raise perf_event.PerfError(perf_event._why(number, cpu))

    monkeypatch.setattr(perf_event, "_open", refuse)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert words in Instructions().obstacle()
    assert "apt-get install valgrind" in Instructions().obstacle()
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert Instructions().obstacle() == ""


@pytest.mark.parametrize(("refused", "source"), [("", "perf_event"), ("no", "callgrind")])
def test_instructions_prefer_perf_event(refused: str, source: str, monkeypatch: Any) -> None:
    modes = []

    def answers(mode: str, tasks: Any, seconds: float, env: dict[str, str]) -> list[Any]:
        modes.append((mode, env["OMP_NUM_THREADS"]))
        return [{"instructions": 12.0}]

    monkeypatch.setattr(perf_event, "refusal", lambda *event: refused)
    monkeypatch.setattr("fuselab.counters.instructions.answers", answers)
    (counts,) = Instructions().count(tasks()[:1], 30)
    assert counts == {"instructions": Count(12.0, "instruction", source)}
    assert modes == [(source, "1")]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(Instructions().obstacle()), reason=Instructions().obstacle())
def test_instructions_of_this_machine(toy: str) -> None:
    (counts,) = Instructions().count([Task(replace(GROUP, source=toy), "eager")], 800)
    found = counts["instructions"]
    # 2112 elements, three operators, eight elements an instruction at most.
    assert found.value is not None, found.unavailable
    assert 3 * 2112 / 8 < found.value < 10_000_000


def test_what_stops_callgrind_is_named() -> None:
    said = (
        "Failed to collect callgrind profile:\n==7== valgrind: Unrecognised instruction at 0x2.\n"
    )
    assert "AVX-512" in child._why_callgrind(said + "==7== I   refs: 0\n")
    assert child._why_callgrind("Failed:\nMemoryError\n\n") == "MemoryError"


def controller(folder: Path) -> Path:
    for name, text in {
        "uncore_imc_0/type": "14\n",
        "uncore_imc_0/cpumask": "0,24\n",
        "uncore_imc_0/format/event": "config:0-7\n",
        "uncore_imc_0/format/umask": "config:8-15\n",
        "uncore_imc_0/events/cas_count_read": "event=0x04,umask=0x03\n",
        "uncore_imc_0/events/cas_count_read.scale": "6.103515625e-5\n",
        "uncore_imc_0/events/cas_count_read.unit": "MiB\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_memory_controllers_are_read_on_every_socket(tmp_path: Path, monkeypatch: Any) -> None:
    found = traffic.sources(traffic.READS, controller(tmp_path))
    assert [(s.kind, s.config, s.cpu, s.scale) for s in found] == [
        (14, 0x304, cpu, 64.0) for cpu in (0, 24)
    ]
    # Without writes, their unknown would look like none.
    monkeypatch.setattr(traffic, "sources", lambda names: found if names is traffic.READS else [])
    assert "uncore_imc" in traffic.Traffic().obstacle()


def test_energy_opens_and_closes_its_window_on_a_tick() -> None:
    now = 0.0

    def chunk() -> int:
        nonlocal now
        now += 0.03
        return 10

    # 100 W, shown ten times a second: 3 J in 30 ms, 0.3 J a call.
    found = joules_per_call(chunk, lambda: int(now * 10 + 1e-9) * 10_000, lambda: now)
    assert found == pytest.approx(0.3, rel=0.1)


def test_a_meter_that_stands_still_is_an_error() -> None:
    ticks = iter(range(1000))
    with pytest.raises(RuntimeError, match="did not change"):
        joules_per_call(lambda: 1, lambda: 5, lambda: float(next(ticks)))


def test_a_child_that_fails_says_why() -> None:
    task = Task(replace(GROUP, source="gone_ops.py"), "eager")
    counts = CompileTime().count([task], 100)[0]
    assert set(counts) == {"compile_cold_s", "compile_warm_s"}
    assert all("gone_ops.py: no such file" in c.unavailable for c in counts.values())
    with pytest.raises(launch.ChildError, match=r"no answer within 0.1 s"):
        launch.ask("compile", [task], 0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("plain_compiler")
def test_compiling_cold_takes_longer_than_warm(toy: str) -> None:
    (counts,) = CompileTime().count([Task(replace(GROUP, source=toy), "compile")], 280)
    cold, warm = counts["compile_cold_s"].value, counts["compile_warm_s"].value
    assert cold is not None, counts
    assert warm is not None, counts
    assert cold > warm > 0.01


@pytest.mark.parametrize(
    "fields",
    [
        *((None, "s", "ncu"), (1.0, "s", "ncu", "no"), (1.0, "s", "")),
        *((math.nan, "s", "ncu"), (-1.0, "s", "ncu")),
    ],
)
def test_a_count_has_a_value_or_a_reason(fields: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="value: got"):
        Count(*fields)


def measurement(impl: str = "eager", **counts: Count) -> Measurement:
    return Measurement(
        GROUP.cell(impl), Status.OK, timer="wall", samples_us=(1.0, 2.0), counts=counts
    )


COUNTS = {
    **counted({"instructions": 5.0}, "callgrind"),
    **uncounted(["energy_j"], "NVML meters GPUs only"),
    "dram_read_bytes": Count(3.0, "byte", "ncu", parts={"k": 3.0}),
}


def test_the_store_keeps_counts_and_the_environment_they_are_of(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.set_environment({"cpu": "one"})
        store.write(GROUP, [measurement()])
    with Store.open(tmp_path) as store:
        (first,) = store.measurements()
        store.write(GROUP, [replace(first, counts=COUNTS)])
        (second,) = store.measurements()
    assert second == replace(first, counts=COUNTS)
    assert second.environment


def test_a_store_without_counts_still_opens(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.write(GROUP, [measurement()])
        body = json.loads(store._connection.execute("SELECT body FROM cell").fetchone()[0])
        del body["counts"]
        store._connection.execute("UPDATE cell SET body = ?", (json.dumps(body),))
        assert [m.counts for m in store.measurements()] == [{}]


def test_records_and_report_name_what_is_missing_once() -> None:
    found = [measurement(**COUNTS), measurement("right", **COUNTS)]
    rows = metrics.records(found)
    assert (rows[0]["instructions"], rows[0]["energy_j"]) == (5.0, None)
    assert rows[0]["not_counted"] == "energy_j: NVML meters GPUs only"
    view = build(found, [])
    line = "not measured: energy_j (NVML meters GPUs only), 2 cells"
    assert to_terminal(view).startswith(line)
    assert to_markdown(view).count("NVML meters GPUs only") == 1
    for text in (to_terminal(view), to_markdown(view), to_html([Shown("A", "out/run", found)])):
        assert "All metrics" in text
    assert len(view.counters.rows) == 2
    assert build([measurement()], []).counters.rows == ()


def test_every_device_has_every_count() -> None:
    for device in ("cpu", "cuda:0"):
        names = [name for counter in count.counters(device) for name in counter.names]
        assert sorted(names) == sorted(metric.name for metric in COUNTED)


def test_a_grid_is_refused_before_anything_is_measured(
    toy: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(count, "MOST_CELLS", 7)
    out = tmp_path / "run"
    arguments = ["run", toy, "--out", str(out), "--device", "cpu", "--metrics", "all"]
    assert command(arguments) == 2
    message = capsys.readouterr().err
    assert "metrics: got 'all' for 16 cells, expected at most 7" in message
    assert "--case" in message
    assert not out.exists()


@pytest.mark.slow
def test_all_metrics_of_a_file_and_resume(
    toy: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(Instructions, "obstacle", lambda self: "no valgrind; install it")
    arguments = ["run", toy, "--out", str(tmp_path), "--device", "cpu", "--metrics", "all"]
    arguments += ["--impl", "eager", "--direction", "fwd", "--dtype", "fp32"]
    assert command(arguments) == 0
    said = capsys.readouterr()
    assert "1 cells to count" in said.err
    assert "not measured: instructions (no valgrind; install it), 1 cell" in said.out
    found = eager(tmp_path)
    assert set(found) == {metric.name for metric in COUNTED}
    assert 0 < (found["compile_cold_s"].value or 0) < 60
    assert found["energy_j"].unavailable == "NVML meters GPUs only"

    def again(self: CompileTime, tasks: Any, seconds: float) -> Any:
        raise AssertionError("counted twice")

    monkeypatch.setattr(CompileTime, "count", again)
    assert command(arguments) == 0
    assert "0 cells to count" in capsys.readouterr().err

    # What was missing has been installed since.
    monkeypatch.setattr(Instructions, "obstacle", lambda self: "")
    monkeypatch.setattr(
        Instructions, "count", lambda *_: [counted({"instructions": 9.0}, "callgrind")]
    )
    assert command(arguments) == 0
    assert eager(tmp_path) == found | counted({"instructions": 9.0}, "callgrind")


def eager(folder: Path) -> dict[str, Count]:
    with Store.open_readonly(folder) as store:
        (found,) = [m for m in store.measurements() if m.cell.impl == "eager"]
    return dict(found.counts)
