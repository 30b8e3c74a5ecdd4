"""fuselab profile: kernels of a call, roofline arithmetic, what is missing, and a run on a CPU."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuselab.command_line.cli import command
from fuselab.commands.measuring import profile as verb
from fuselab.counters import counted, ncu, uncounted
from fuselab.counters.instructions import Instructions
from fuselab.machine import roofs
from fuselab.model import Accuracy, Count, Group, Measurement, Proof, Status
from fuselab.planning.plan import CEILING
from fuselab.records.columns import NAMED
from fuselab.report import profile
from fuselab.report.pictures import roofline
from fuselab.report.pictures.roofline import NO_PEAK, Limits, Peak, Point
from fuselab.storage.store import Store

GROUP = Group("norm", "8x61", "bfloat16", "bwd", "contiguous", "cuda:0", ("eager", "fast", CEILING))
# The same function twice as ncu spells it, once as CUPTI does.
DX = "void at::native::<unnamed>::dx_kernel<float, (int)4>(T1 *, const T1 *, unsigned long)"
CUPTI_DX = "void at::native::(anonymous namespace)::dx_kernel<float, 4>(float*, float const*)"
DW = "dw_kernel"
RAN = {DW: 1, CUPTI_DX: 2, "Memset (Device)": 1}
TIME = "time by ncu (us)"
# kernel, ns, DRAM bytes read and written, sectors loaded and stored, of them hits, adds, fmas
LOG = (
    (DX, 30_000, 4_000_000, 2_000_000, 1000, 500, 250, 1_000_000, 500_000),
    (DW, 20_000, 2_000_000, 0, 3000, 0, 2250, 0, 1_500_000),
    (DX, 30_000, 4_000_000, 2_000_000, 3000, 500, 1500, 1_000_000, 500_000),
)
SHOWN = {
    "gpu__time_duration.sum": "ns",
    "dram__bytes_read.sum": "byte",
    "dram__bytes_write.sum": "byte",
    "lts__t_sectors_srcunit_tex_op_read.sum": "sector",
    "lts__t_sectors_srcunit_tex_op_write.sum": "sector",
    "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum": "sector",
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": "inst",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": "inst",
}
SHOWN |= {m: "inst" for m in ncu.SUMS["measured_flops"] if m not in SHOWN}


def log() -> str:
    lines = [["ID", "Kernel Name", "Range", *SHOWN], ["", "", "", *SHOWN.values()]]
    for number, (name, *values) in enumerate(LOG):
        zeros = [0] * (len(SHOWN) - len(values))
        lines.append([str(number), name, "fuselab-0", *map(str, (*values, *zeros))])
    return "\n".join(",".join(f'"{text}"' for text in line) for line in lines)


def counts() -> dict[str, Count]:
    return {
        **ncu.totals(ncu.parse(log())[0]),
        **counted({"compile_cold_s": 2.5, "compile_warm_s": 0.5}, "fresh process"),
        **counted({"energy_j": 0.02}, "nvml"),
    }


def timed(impl: str, us: float, **fields: Any) -> Measurement:
    return Measurement(
        GROUP.cell(impl),
        Status.OK,
        timer="cupti",
        samples_us=(us, us, us),
        accuracy=None if impl == CEILING else Accuracy(1e-3, 1e-5, 1.5, 0.75),
        ideal_bytes=8_000_000,
        flops=2_000_000,
        environment="e1",
        **fields,
    )


def measured(**fields: Any) -> list[Measurement]:
    """One group: eager in 200 us, fast in 100 us, a ceiling that moves 8 MB in 50 us."""
    fast = {"counts": counts(), "proof": Proof(kernels=RAN, launches=4)} | fields
    return [
        timed("eager", 200.0),
        timed("fast", 100.0, **fast),
        timed(CEILING, 50.0, proof=Proof(role=CEILING, mix="2R1W")),
    ]


def played(peak: Peak | None = None, **fields: Any) -> profile.Profile:
    return profile.build(measured(**fields), GROUP.cell("fast"), peak)


def table(text: str, title: str) -> list[list[str]]:
    """Return the cells of the table below a title."""
    lines = text.split(f"{title}:\n")[1].splitlines()
    rows = [line for line in lines[: lines.index(lines[0], 1)] if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_kernels_of_a_call_longest_first_then_what_only_the_timer_saw() -> None:
    dx, dw, memset = played().kernels
    assert (dx.name, dx.launches, dw.name, dw.launches) == (DX, 2, DW, 1)
    assert (memset.name, memset.launches, memset.counts) == ("Memset (Device)", 1, {})
    assert dx.counts["profiled_us"] == pytest.approx(60.0)
    assert dx.counts["time_share"] == pytest.approx(0.75)
    assert dx.counts["dram_read_bytes"] == 8e6
    assert dx.counts["measured_flops"] == 2 * (1e6 + 2 * 500_000)
    assert dx.counts["load_hit_rate"] == pytest.approx((0.25 * 1000 + 0.5 * 3000) / 4000)
    assert dw.counts["load_hit_rate"] == 0.75


def test_the_table_of_kernels_shows_what_is_known_and_a_total() -> None:
    text = profile.to_terminal(played())
    head, dx, dw, memset, total = table(text, "Kernels")
    column = {name: index for index, name in enumerate(head)}
    assert "warp instructions" not in head, "nothing counted them"
    assert [row[0] for row in (dx, dw, memset, total)] == [
        *("dx_kernel", "dw_kernel", "Memset (Device)", "total")
    ]
    assert [dx[column[n]] for n in ("launches", TIME, "share")] == ["2", "60.000", "75%"]
    assert set(memset[column[TIME] :]) == {"n/a"}
    assert [total[column[name]] for name in ("launches", TIME, "share", "DRAM write")] == [
        *("4", "80.000", "100%", "3.8 MiB")
    ]
    assert total[column["load hits"]] == "57%"
    assert f"\ndx_kernel: {DX}\n" in text, "the full name is below the table"


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (DX, "dx_kernel"),
        (CUPTI_DX, "dx_kernel"),
        ("void (anonymous namespace)::f<int>()", "f"),
        ("_rms_norm_fwd", "_rms_norm_fwd"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
        ("<lambda>", "<lambda>"),
    ],
)
def test_two_spellings_of_a_kernel_have_one_name(kernel: str, name: str) -> None:
    assert profile.function(kernel) == name


@pytest.mark.parametrize(("ran", "launches"), [(2, 1), (3, None)])
def test_launches_of_kernels_that_share_a_name(ran: int, launches: int | None) -> None:
    alike = [f"void elementwise_kernel<{kind}, a_long_functor_of_many_words>()" for kind in "ab"]
    counted_apart = {
        "profiled_us": Count(3.0, "us", "ncu", parts=dict(zip(alike, (2.0, 1.0), strict=True)))
    }
    kernels = {"void elementwise_kernel<c, a_long_functor_of_many_words>()": ran}
    found = played(counts=counted_apart, proof=Proof(kernels=kernels, launches=ran))
    assert [kernel.launches for kernel in found.kernels] == [launches, launches]
    _, first, second, _ = table(profile.to_terminal(found), "Kernels")
    assert (first[0], second[0]) == ("elementwise_kernel #1", "elementwise_kernel #2")


def test_intensity_and_what_is_reached() -> None:
    point = Point(flops=4e9, nbytes=2e9, median_us=500.0)
    assert (point.intensity, point.flops_per_s, point.gbps) == (2.0, 8e12, 4000.0)
    limits = Limits(4000.0, "1R1W", Peak(40e12, "doctor"))
    assert limits.ridge == 10.0
    assert [limits.bound(x) for x in (9.9, 10.1, None)] == ["memory", "compute", None]
    assert Limits(4000.0, "1R1W").bound(1e-6) is None, "no roof, no side"
    assert Limits(None, "", Peak(1.0, "doctor")).ridge is None


@pytest.mark.parametrize("absent", [Point(None, 8.0, 1.0), Point(8.0, None, 1.0), Point(8, 0, 1)])
def test_what_is_unknown_has_no_intensity(absent: Point) -> None:
    assert absent.intensity is None
    assert not absent.visible


def test_measured_and_modelled_never_mix() -> None:
    _, measured_row, model = table(profile.to_terminal(played()), "Roofline")
    # 7 MFLOP over 14 MB, and 2 MFLOP over 8 MB, in 100 us beside a ceiling of 160 GB/s.
    assert measured_row[1:] == ["7 M", "13.4 MiB", "0.5", "70 G", "140", "87.5%"]
    assert model[1:] == ["2 M", "7.6 MiB", "0.25", "20 G", "80", "50%"]
    for absent, row in (
        ("dram_write_bytes", ["7 M", "n/a", "n/a", "70 G", "n/a", "n/a"]),
        ("measured_flops", ["n/a", "13.4 MiB", "n/a", "n/a", "140", "87.5%"]),
    ):
        found = played(counts=counts() | uncounted([absent], "no"))
        _, measured_row, model = table(profile.to_terminal(found), "Roofline")
        assert (measured_row[1:], model[1]) == (row, "2 M")


def test_the_compute_roof_is_said_to_be_unmeasured_until_it_is() -> None:
    text = profile.to_terminal(played())
    assert NO_PEAK in text
    assert "bound" not in text
    text = profile.to_terminal(played(Peak(64e9, "a test")))
    assert NO_PEAK not in text
    assert "compute roof: 64 GFLOP/s by a test" in text
    assert "ridge: 0.4 FLOP / byte" in text
    head, measured_row, model = table(text, "Roofline")
    assert head[-2:] == ["of compute roof", "bound"]
    assert (measured_row[-2:], model[-2:]) == (["109%", "compute"], ["31.2%", "memory"])


def test_the_picture_needs_a_memory_roof_and_a_point(tmp_path: Path) -> None:
    found = played().position
    picture = roofline.save_svg([found, replace(found, title="second")], tmp_path / "r.svg")
    assert picture == tmp_path / "r.svg"
    texts = [e.text for e in ElementTree.parse(picture).iter() if e.tag.endswith("}text")]
    assert {found.title, "second", "memory: 160 GB/s (2R1W ceiling)"} <= set(texts)
    assert texts.count("fast, measured") == texts.count("fast, model") == 2
    roofless = replace(found, limits=Limits(None))
    pointless = replace(found, measured=Point(0, 8, 1), model=Point(None, 8, 1))
    assert roofline.save_svg([roofless, pointless], tmp_path / "none.svg") is None
    assert not (tmp_path / "none.svg").exists()


def test_without_permission_the_timers_kernels_stay() -> None:
    refused = uncounted(ncu.NAMES, ncu.NO_PERMISSION)
    text = profile.to_terminal(played(counts=refused))
    head, *rows = table(text, "Kernels")
    assert head == ["kernel", "launches"]
    assert [row[1] for row in rows] == ["1", "2", "1", "4"]


def test_a_failed_cell_says_why_and_shows_no_figure() -> None:
    failed = Measurement(GROUP.cell("fast"), Status.CRASHED, "killed\x1b[31m by SIGSEGV")
    text = profile.to_terminal(profile.build([failed], failed.cell))
    title = "norm backward, 8x61 bfloat16 on cuda:0, fast: crashed"
    assert text == f"{title}\n  reason    killed [31m by SIGSEGV"


def test_a_profile_as_json_has_kernels_roofs_and_metrics() -> None:
    found = json.loads(json.dumps(profile.to_dict(played()), allow_nan=False))
    assert set(found) == {"metrics", "kernels", "roofline"}
    assert set(NAMED) <= set(found["metrics"])
    names = [(kernel["name"], kernel["launches"]) for kernel in found["kernels"]]
    assert names == [(DX, 2), (DW, 1), ("Memset (Device)", 1)]
    assert len({tuple(kernel) for kernel in found["kernels"]}) == 1, "all have the same keys"
    assert found["kernels"][2]["dram_read_bytes"] is None
    assert found["roofline"]["measured"]["intensity"] == 0.5
    assert found["roofline"]["model"]["intensity"] == 0.25
    assert found["roofline"]["compute_roof_flops_per_s"] is None
    assert found["roofline"]["compute_roof_source"] == NO_PEAK


def arguments(target: str, out: Path, *more: str, impl: str = "right") -> list[str]:
    words = ["profile", target, "--impl", impl, "--case", "small", "--out", str(out)]
    return [*words, "--device", "cpu", "--precision", "quick", *more]


def test_the_compute_roof_is_what_doctor_measured_where_the_cell_was(monkeypatch: Any) -> None:
    here = {"id": "e1", "gpu": "this one"}
    known = roofs.Roofs({}, {"bfloat16 matmul": 8e14, "float32 fma": 6e13}, "today")
    monkeypatch.setattr(roofs, "load", lambda env: known if env == here else None)
    cell = timed("fast", 1.0)
    elsewhere = replace(cell, environment="e2")
    assert verb._peak(cell, [here]) == Peak(6e13, "fuselab doctor, float32 fma")
    assert verb._peak(elsewhere, [here, {**here, "id": "e2"}]) is None
    assert verb._peak(elsewhere, [here]) is None, "an environment that nobody knows"
    assert verb._peak(replace(cell, cell=replace(cell.cell, dtype="int8")), [here]) is None


@pytest.fixture
def no_callgrind(monkeypatch: Any) -> None:
    """Counting instructions under valgrind takes a minute."""
    monkeypatch.setattr(Instructions, "obstacle", lambda self: "no valgrind; install it")


@pytest.mark.slow
@pytest.mark.usefixtures("no_callgrind")
def test_a_profile_on_a_cpu_and_again(
    toy: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    assert command(arguments(toy, tmp_path)) == 0
    said = capsys.readouterr()
    assert "swish: dtype float32" in said.err
    titles = [f"swish {way}, small float32 on cpu, right: " for way in ("forward", "backward")]
    first, second = (said.out.index(title) for title in titles)
    assert first < second
    operators = table(said.out, "Operators")
    assert [row[:2] for row in operators] == [
        *(["operator", "calls"], ["aten::silu", "1"], ["aten::mul", "1"], ["total", "2"])
    ]
    assert "compile   cold 0." in said.out
    reasons = ["no valgrind", "Nsight Compute counts on GPUs only", "NVML meters GPUs only"]
    assert [said.out.count(reason) for reason in reasons] == [1, 1, 1]
    noisy = "right: noisy" in said.out
    assert ("memory roof unknown: " if noisy else "memory roof: ") in said.out
    assert "the operator's cost model has no FLOPs" in said.out
    assert not list(tmp_path.glob("*.svg")), "without FLOPs there is no point to draw"
    with Store.open_readonly(tmp_path) as store:
        stored = {(m.cell.impl, m.cell.direction): m.counts for m in store.measurements()}
    assert len(stored) == 6, "eager, right and the ceiling, both ways"
    assert [key for key, found in stored.items() if found] == [("right", "fwd"), ("right", "bwd")]

    def never(*_: Any) -> Any:
        raise AssertionError("measured or counted twice")

    monkeypatch.setattr("fuselab.runner.Worker.ask", never)
    monkeypatch.setattr("fuselab.counters.compile_time.CompileTime.count", never)
    assert command(arguments(toy, tmp_path, "--direction", "bwd", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    (cell,) = found["cells"]
    assert (found["store"], found["picture"]) == (str(tmp_path), None)
    assert (cell["metrics"]["direction"], cell["metrics"]["timer"]) == ("bwd", "wall")
    roof = cell["roofline"]["memory_roof_gbps"]
    assert roof == cell["metrics"]["ceiling_gbps"]
    assert roof is None or roof > 0, "None where the ceiling was noisy"


@pytest.mark.usefixtures("no_callgrind")
def test_a_profile_of_what_is_wrong_is_exit_1(faulty: str, tmp_path: Path, capsys: Any) -> None:
    assert command(arguments(faulty, tmp_path, "--direction", "fwd", impl="wrong")) == 1
    out = capsys.readouterr().out
    assert "wrong: incorrect\n  reason  " in out
    assert "\n  accuracy  max error" in out
    assert "Roofline" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--impl", "cudnn"], "impl: got 'cudnn', expected one of: eager, right, torchscript"),
        (["--impl", "ceiling"], "impl: got 'ceiling', expected an implementation"),
        (["--case", "huge"], "case: got 'huge', expected one of: small, large"),
        (["--dtype", "int8"], "dtype: got 'int8', expected one of: float32, bfloat16"),
        (["--direction", "up"], "direction: got 'up', expected one of: fwd, bwd"),
        (["--device", "tpu"], "device: got 'tpu', expected one of: cpu"),
    ],
)
def test_what_does_not_exist_is_exit_2_before_anything_runs(
    words: list[str], message: str, toy: str, tmp_path: Path, capsys: Any
) -> None:
    assert command([*arguments(toy, tmp_path / "out"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("absent", ["--impl", "--case"])
def test_a_cell_must_be_named(absent: str, toy: str, capsys: Any) -> None:
    words = {"--impl": "right", "--case": "small"}
    given = [word for pair in words.items() if pair[0] != absent for word in pair]
    assert command(["profile", toy, *given]) == 2
    assert absent in capsys.readouterr().err


def test_the_dtype_is_what_models_are_run_in_or_the_first(capsys: Any) -> None:
    groups = [replace(GROUP, dtype=dtype) for dtype in ("float64", "float32", "bfloat16")]
    for device, dtype in (("cuda:0", "bfloat16"), ("cpu", "float32")):
        assert [g.dtype for g in verb._of_default_dtype(groups, device)] == [dtype]
    assert [g.dtype for g in verb._of_default_dtype(groups[:1], "cpu")] == ["float64"]
    assert "norm: dtype bfloat16; --dtype names another" in capsys.readouterr().err
