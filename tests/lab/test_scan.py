"""fuselab scan: steps found, calls recorded, aligned, measured, forecast, applied."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import fuseline
from fuselab.command_line.cli import command
from fuselab.machine import roofs
from fuselab.planning.plan import PlanError
from fuselab.scan.costs import Rates, of_call, of_event
from fuselab.scan.forecast import compare, forecast
from fuselab.scan.rank import Ranking
from fuselab.scan.record import Outcome, Served, Time
from fuselab.scan.script import plan
from fuselab.scan.traces import foreign, trace
from fuselab.scan.traces.align import replaced
from fuselab.scan.traces.calls import call_of, merged
from fuselab.scan.traces.trace import Event, operators
from fuselab.worker.device.ceiling import MIXES
from fuselab.worker.operators.recorded import Recorded, Suite, SuiteError, of_calls, read
from fuseline import table

SCANNED = Path(__file__).with_name("scanned")
GBPS = {str(1 << 24): {"torch": 10.0}}
ROOFS = roofs.Roofs(dict.fromkeys(MIXES, GBPS), {"float32 matmul 1024": 1e11}, "")
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def known_roofs() -> Iterable[None]:
    """Have the device's roofs known: to measure them takes long."""
    patch = pytest.MonkeyPatch()
    patch.setattr(roofs, "load", lambda environment: ROOFS)
    patch.setenv("OMP_NUM_THREADS", "1")
    yield
    patch.undo()


def scanned(out: Path, script: str, *arguments: str, options: Iterable[str] = ()) -> dict[str, Any]:
    given = ("--device", "cpu", "--no-compile", "--steps", "2", "--out", str(out), *options)
    assert command(["scan", *given, str(SCANNED / script), *arguments]) == 0
    found: dict[str, Any] = json.loads((out / "scan.json").read_text())["scan"]
    return found


@pytest.fixture(scope="module")
def training(tmp_path_factory: Any) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("training")
    options = ("--suite", str(out / "calls.json"))
    return scanned(out, "train.py", "--layers", "1", options=options), out


def test_a_training_step_is_ranked_and_its_served_calls_are_known(
    training: tuple[dict[str, Any], Path],
) -> None:
    found, _ = training
    assert found["steps"] == "from one optimizer.step() to the next"
    assert found["disagreement"] < 0.05
    served = {(one["op"], one["way"]): one for one in found["served"]}
    assert served.keys() == {
        ("rms_norm", "patch"),
        ("swiglu", "patch"),
        ("softmax", "enable"),
        ("log_softmax", "enable"),
    }
    assert {op: one["calls"] for (op, _), one in served.items()} == {
        "rms_norm": 3.0,
        "swiglu": 1.0,
        "softmax": 1.0,
        "log_softmax": 1.0,
    }
    assert all(one["now_us"].keys() == {"fwd", "bwd"} for one in served.values())
    assert all(one["lacking"] == "" for one in served.values())
    rows = {(row["name"], row["phase"]) for row in found["rows"]}
    assert {("aten::mm", "bwd"), ("aten::addmm", "fwd"), ("aten::bmm", "fwd")} <= rows
    # Of the norm's formula nothing is left beside the norm itself, nor of what made its gradient.
    assert ("aten::rsqrt", "fwd") not in rows
    lost = [row["us"] - row["ceiling_us"] for row in found["rows"] if row["ceiling_us"] is not None]
    assert [max(0.0, us) for us in lost] == sorted((max(0.0, us) for us in lost), reverse=True)


def test_a_forecast_stands_beside_what_was_measured(training: tuple[dict[str, Any], Path]) -> None:
    found, out = training
    said, compared = found["forecast"], found["compared"]
    assert 0 < said["ms"] < said["plain_ms"]
    outcome = found["outcome"]
    assert [len(outcome[name]) for name in ("plain_ms", "patched_ms", "again_ms")] == [2, 2, 2]
    share = said["ms"] / said["plain_ms"]
    expected = share * compared["plain_ms"] / compared["patched_ms"] - 1
    assert compared["off"] == pytest.approx(expected)
    page = (out / "scan.html").read_text()
    assert "Scan of train.py" in page
    assert "rms_norm" in page


def test_recorded_calls_are_a_suite_that_runs(
    training: tuple[dict[str, Any], Path], tmp_path: Path, capsys: Any
) -> None:
    _, out = training
    suite = read(out / "calls.json")
    (norm,) = (case for case in suite.cases if case.op == "rms_norm")
    assert norm.inputs["x"] == {"shape": [4, 64, 64], "strides": [4096, 64, 1], "dtype": "float32"}
    assert (norm.count, norm.directions, norm.dtype) == (3.0, ("fwd", "bwd"), "float32")
    given = ("--suite", str(out / "calls.json"), "--impl", "cpu", "--out", str(tmp_path / "run"))
    assert command(["run", "rms_norm", *given, "--device", "cpu", "--precision", "quick"]) == 0
    assert norm.name in capsys.readouterr().out


def test_calls_of_a_module_are_steps_of_a_script_without_an_optimizer(tmp_path: Path) -> None:
    found = scanned(tmp_path, "infer.py", options=("--no-apply",))
    assert found["steps"] == "calls of a module that no other module calls"
    assert {one["op"] for one in found["served"]} == {"rms_norm", "swiglu", "softmax"}
    assert all(one["now_us"].keys() == {"fwd"} for one in found["served"])
    assert found["outcome"] is None


def test_a_script_says_itself_what_a_step_is(tmp_path: Path) -> None:
    found = scanned(tmp_path, "marked.py", options=("--no-apply",))
    assert found["steps"] == "fuselab.scan.step() of the script"
    assert {(one["op"], one["calls"]) for one in found["served"]} == {
        ("softmax", 1.0),
        ("log_softmax", 1.0),
    }


def test_a_script_that_fails_keeps_what_was_recorded(tmp_path: Path, capfd: Any) -> None:
    given = ("--device", "cpu", "--no-compile", "--steps", "2", "--out", str(tmp_path))
    code = command(["scan", *given, str(SCANNED / "train.py"), "--layers", "1", "--fail-at", "8"])
    assert code == 1
    found = json.loads((tmp_path / "scan.json").read_text())["scan"]
    assert found["raised"] == "ValueError: the data ran out"
    assert found["rows"]
    assert "in main" in capfd.readouterr().err  # the script's own traceback


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("llama", {"rms_norm", "swiglu", "cross_entropy"}),
        ("qwen3", {"rms_norm", "swiglu", "cross_entropy"}),
        ("gpt2", {"softmax", "log_softmax"}),
        ("bert", {"softmax", "log_softmax"}),
        ("vit", {"log_softmax"}),
    ],
)
def test_models_of_transformers(name: str, ops: set[str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    found = scanned(tmp_path, "of_transformers.py", name, options=("--no-apply",))
    assert {one["op"] for one in found["served"] if one["way"] != "call"} >= ops
    assert found["disagreement"] < 0.05
    assert 0 < found["forecast"]["ms"] <= 1.05 * found["forecast"]["plain_ms"]


@pytest.mark.parametrize(
    ("script", "words"),
    [("none.py", "it has no step"), ("missing.py", "expected a file")],
)
def test_a_script_without_a_step_is_refused(
    script: str, words: str, tmp_path: Path, capfd: Any
) -> None:
    assert command(["scan", "--out", str(tmp_path / "out"), str(SCANNED / script)]) != 0
    assert words in capfd.readouterr().err


def test_a_mark_does_nothing_elsewhere() -> None:
    lines = "import fuselab.scan, sys", "with fuselab.scan.step(): pass"
    code = "\n".join((*lines, "sys.exit('torch' in sys.modules)"))
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_few_steps_are_shared_out_among_runs() -> None:
    (whole,) = plan.recording(5)
    assert plan.recording(5, plan.length(whole)) == (whole,)
    assert plan.recording(5, 1) == ((("profile", 1),), (("cover", 1),), (("plain", 1),))
    assert plan.comparing(5, 4) == (
        (("warm", 2), ("plain", 2)),
        (("patch", 2), ("patched", 2)),
    )
    for available in range(1, 12):
        runs = (*plan.recording(5, available), *plan.comparing(5, available))
        assert all(plan.length(run) <= available for run in runs)


# Traces.


def traced(folder: Path, name: str, step: Any) -> list[Event]:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        step()
    path = folder / f"{name}.json"
    seen.export_chrome_trace(str(path))
    return trace.load(path)


def test_times_by_operator_are_those_of_the_profiler(tmp_path: Path) -> None:
    x = torch.randn(64, 256, requires_grad=True)
    w = torch.randn(256, 256, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        for _ in range(3):
            F.softmax(F.gelu(x @ w), -1).sum().backward()
    seen.export_chrome_trace(str(tmp_path / "t.json"))
    step = trace.load(tmp_path / "t.json")
    mine: dict[str, float] = {}
    for row in Ranking([step], None, {}, Rates(None)).rows():
        mine[row.name] = mine.get(row.name, 0.0) + row.us
    theirs = {e.key: e.self_cpu_time_total for e in seen.key_averages() if e.key in mine}
    assert {"aten::mm", "aten::gelu", "aten::_softmax"} <= theirs.keys()
    for name, us in theirs.items():
        assert mine[name] == pytest.approx(us, rel=0.05, abs=5), name


def test_phases_and_arguments_of_a_trace(tmp_path: Path) -> None:
    x = torch.randn(8, 64, 4).transpose(1, 2).requires_grad_()
    step = traced(tmp_path, "t", lambda: F.layer_norm(x, (64,), eps=1e-3).sum().backward())
    (norm,) = (e for e in operators(step) if e.name == "aten::native_layer_norm")
    assert norm.phase == "fwd"
    call = call_of(norm)
    assert isinstance(call, Recorded)
    assert call.inputs["x"] == {"shape": [8, 4, 64], "strides": [256, 1, 4], "dtype": "float32"}
    assert call.inputs["eps"] == 1e-3
    assert call.inputs["weight"] is None
    assert {e.phase for e in operators(step) if "backward" in e.name} == {"bwd"}


def test_what_ours_stand_in_for_is_found_by_alignment(tmp_path: Path) -> None:
    x, w = torch.randn(64, 256, requires_grad=True), torch.ones(256, requires_grad=True)

    def formula() -> None:
        y = w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))
        (torch.relu(y) * 2).sum().backward()

    def ours() -> None:
        (torch.relu(fuseline.rms_norm(x, w, eps=1e-5)) * 2).sum().backward()

    plain, patched = traced(tmp_path, "plain", formula), traced(tmp_path, "patched", ours)
    (one,) = replaced(plain, patched, {})
    assert [e.name for e in one.plain] == [
        "aten::pow", "aten::mean", "aten::add", "aten::rsqrt", "aten::mul", "aten::mul"
    ]  # fmt: skip
    assert one.way == "patch"
    gone = {e.name.split()[-1] for e in one.backward}
    assert {"PowBackward0", "MeanBackward1", "RsqrtBackward0", "MulBackward0"} <= gone
    assert "ReluBackward0" not in gone
    call = call_of(one.ours[0])
    assert isinstance(call, Recorded)
    assert (call.op, call.inputs["eps"]) == ("rms_norm", 1e-5)


def event(name: str, cat: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "tid": tid, "args": args}


def test_calls_between_those_of_a_gate_are_left_alone(tmp_path: Path) -> None:
    x, w = torch.randn(32, 64, requires_grad=True), torch.ones(64, requires_grad=True)
    gate, up = (torch.randn(128, 64, requires_grad=True) for _ in range(2))
    down = torch.randn(64, 128, requires_grad=True)

    def layer(norm: Any, gated: Any) -> None:
        y = x
        for _ in range(2):
            h = norm(y)
            y = y + F.linear(gated(h), down)
        y.sum().backward()

    def formula(y: Any) -> Any:
        return w * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5))

    def ours(h: Any) -> Any:
        a, b = F.linear(h, gate), F.linear(h, up)
        return fuseline.swiglu(a, b)

    plain = traced(
        tmp_path, "a", lambda: layer(formula, lambda h: F.silu(F.linear(h, gate)) * F.linear(h, up))
    )
    patched = traced(
        tmp_path, "b", lambda: layer(lambda y: fuseline.rms_norm(y, w, eps=1e-5), ours)
    )
    found = replaced(plain, patched, {})
    assert [[e.name.removeprefix("aten::") for e in one.plain] for one in found] == [
        ["pow", "mean", "add", "rsqrt", "mul", "mul"], ["silu", "mul"]
    ] * 2  # fmt: skip
    names = {event.name for one in found for event in one.events("bwd")}
    assert "aten::silu_backward" in names
    assert "aten::mm" not in names


def test_kernels_belong_to_the_operator_that_launched_them(tmp_path: Path) -> None:
    evaluate = "autograd::engine::evaluate_function: SoftmaxBackward0"
    shaped = {"Input Dims": [[4, 8]], "Input type": ["float"], "Input Strides": [[8, 1]]}
    listed = [
        event("aten::softmax", "cpu_op", 0, 50, **{"External id": 1, "Sequence number": 3}),
        event("aten::_softmax", "cpu_op", 5, 40, **{"External id": 2, **shaped}),
        event("cudaLaunchKernel", "cuda_runtime", 10, 5, correlation=7),
        event(evaluate, "cpu_op", 100, 50, 2, **{"External id": 3, "Sequence number": 3}),
        event("aten::_softmax_backward_data", "cpu_op", 105, 40, 2, **{"External id": 4}),
        event("cuLaunchKernelEx", "cuda_driver", 110, 5, 2, correlation=8),
        event("cuLaunchKernel", "cuda_driver", 300, 5, correlation=9),
        event("softmax_forward", "kernel", 500, 20.0, 7, correlation=7),
        event("softmax_backward", "kernel", 520, 30.0, 7, correlation=8),
        event("triton_poi", "kernel", 550, 4.0, 7, correlation=9),
        event("Memset", "gpu_memset", 560, 1.0, 7, **{"External id": 2}),
    ]
    (tmp_path / "gpu.json").write_text(json.dumps({"traceEvents": listed}))
    step = trace.load(tmp_path / "gpu.json")
    ranking = Ranking([step], None, {}, Rates(None))
    assert ranking.gpu
    assert ranking.busy_us == 55.0
    rows = {(row.name, row.phase): row.us for row in ranking.rows()}
    assert rows == {
        ("aten::_softmax", "fwd"): 21.0,
        ("aten::_softmax_backward_data", "bwd"): 30.0,
        ("triton_poi", "fwd"): 4.0,
    }
    table_ = {"aten::_softmax": [9.0, 21.0], "aten::_softmax_backward_data": [9.0, 27.0]}
    assert ranking.disagreement([table_]) == pytest.approx(0.1)


def test_a_trace_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[1, 2")
    with pytest.raises(PlanError, match="Chrome trace"):
        trace.load(tmp_path / "t.json")


# Costs.


def test_costs_of_operators_by_tensors_without_data(tmp_path: Path) -> None:
    a, b = torch.randn(16, 32), torch.randn(32, 8)
    table_, rows = torch.randn(1000, 4), torch.arange(10)
    q = torch.randn(2, 3, 16, 8)

    def step() -> None:
        a @ b
        a.add_(1.0)
        a + a[:, :1].expand(16, 32)
        a.t()
        F.embedding(rows, table_)
        F.scaled_dot_product_attention(q, q, q)

    costs = {e.name: of_event(e) for e in operators(traced(tmp_path, "t", step))}
    mm, view = costs["aten::mm"], costs["aten::t"]
    assert mm is not None
    assert view is not None
    assert (mm[0].bytes_read, mm[0].bytes_written, mm[0].flops) == (
        4 * (16 * 32 + 32 * 8), 4 * 16 * 8, 2 * 16 * 32 * 8
    )  # fmt: skip
    assert view[0].bytes == 0
    attention = costs.get("aten::_scaled_dot_product_flash_attention_for_cpu")
    assert attention is not None
    assert attention[0].flops == 2 * (2 * 2 * 3 * 16 * 16 * 8)
    added, some = costs["aten::add"], costs["aten::embedding"]
    assert added is not None
    assert added[0].bytes_read == 4 * (16 * 32 + 16)
    assert some is not None
    assert some[0].bytes_read == 8 * 10 + 4 * 10 * 4


def test_ceilings_by_bandwidth_and_by_products() -> None:
    call = Recorded("softmax", "x", "float32", {"x": dense(1000, 1000)})
    cost = of_call(call, "fwd")
    assert cost is not None
    assert cost.bytes == 8_000_000
    found = Rates(ROOFS).ceiling(cost, "float32")
    assert found is not None
    assert (found.us, found.of) == (pytest.approx(800), "bandwidth")
    assert Rates(None).ceiling(cost, "float32") is None


def dense(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    strides = torch.empty(shape, device="meta").stride()
    return {"shape": list(shape), "strides": list(strides), "dtype": dtype}


# Suites.


def test_a_recorded_call_is_drawn_as_it_was(tmp_path: Path) -> None:
    strided = {"shape": [4, 6, 8], "strides": [1, 32, 4], "dtype": "bfloat16"}
    inputs = {
        "logits": {"shape": [6, 10], "strides": [16, 1], "dtype": "float32"},
        "target": {"shape": [6], "strides": [0], "dtype": "int64"},
        "weight": None,
        "reduction": "sum",
    }
    file = tmp_path / "s.json"
    calls = (
        Recorded("softmax", "one", "bfloat16", {"x": strided}),
        Recorded("cross_entropy", "two", "float32", inputs, 2.0, ("fwd", "bwd")),
    )
    file.write_text(Suite(calls, {"script": "x.py"}).text())
    assert read(file).cases == calls
    one = of_calls(table.load()["softmax"], calls[:1])
    x = one.inputs(one.cases[0], torch.bfloat16, CPU, torch.Generator())["x"]
    assert (list(x.shape), list(x.stride()), x.dtype) == ([4, 6, 8], [1, 32, 4], torch.bfloat16)
    two = of_calls(table.load()["cross_entropy"], calls[1:])
    drawn = two.make_inputs(two.cases[0], torch.float32, CPU, torch.Generator())
    assert drawn["logits"].stride() == (16, 1)
    assert drawn["target"].stride() == (0,)
    assert 0 <= int(drawn["target"][0]) < 10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "suite of recorded calls"),
        ('{"suite": 7}', "expected 1"),
        ('{"suite": 1, "cases": []}', "got none"),
        ('{"suite": 1, "cases": [{"op": "softmax", "name": "a", "dtype": "float32", "inputs": '
         '{"x": {"shape": [1]}}}]}', "expected shape, strides, dtype"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_suite_is_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(text)
    with pytest.raises(SuiteError, match=words):
        read(file)


def test_calls_that_are_alike_are_one_case() -> None:
    one = Recorded("softmax", "4x8", "float32", {"x": dense(4, 8)}, 2.0)
    other = Recorded("softmax", "4x8", "float32", {"x": dense(4, 8), "dim": 0})
    back = Recorded("softmax", "4x8", "float32", {"x": dense(4, 8)}, 1.0, ("bwd",))
    found = merged([one, other, back])
    assert [(c.name, c.count, c.directions) for c in found] == [
        ("4x8", 3.0, ("fwd", "bwd")),
        ("4x8.2", 1.0, ("fwd",)),
    ]


# Forecasts.


def served(way: str = "patch", **changed: Any) -> Served:
    times = {"fwd": {"cuda": Time(10.0), "eager": Time(50.0)}}
    given = {"times": times, "host_calls": 20.0} | changed
    return Served("rms_norm", "case", way, "cuda", 4.0, {"fwd": 400.0}, "eager", **given)


def test_a_forecast_on_a_gpu_that_waits_for_kernels_or_for_launches() -> None:
    kernels = forecast([2e-3], [1e-3], [2e-3], 1900.0, 100, [served()], gpu=True)
    assert (kernels.bound, kernels.ms) == ("kernels", pytest.approx(2.0 - 0.36))
    launches = forecast([2e-3], [2e-3], [2e-3], 1000.0, 100, [served()], gpu=True)
    # 20 calls gone, 4 come: 16 of 100 in 2 ms.
    assert (launches.bound, launches.ms) == ("launches", pytest.approx(2.0 - 0.32))


def test_a_forecast_on_a_cpu_takes_ours_as_much_longer_as_what_runs_there() -> None:
    one = served(factors={"fwd": 400.0 / (4 * 50.0)})
    found = forecast([2e-3], [], [2e-3], 2000.0, 100, [one], gpu=False)
    assert found.ms == pytest.approx(2.0 - (0.4 - 4 * 0.010 * 2))
    by_name = forecast([2e-3], [], [2e-3], 2000.0, 100, [served("call")], gpu=False)
    assert by_name.ms == pytest.approx(2.0)


def test_a_forecast_is_compared_as_a_share_of_the_plain_step() -> None:
    said = forecast([2e-3], [1e-3], [2e-3], 1900.0, 100, [served()], gpu=True)
    found = compare(said, Outcome((4.0, 4.0), (3.28, 3.28), (4.0,)))
    assert found.off == pytest.approx(0.0)
    assert found.moved == pytest.approx(1.0)
    assert found.speedup == pytest.approx(4.0 / 3.28)


# What other tools recorded.

DEFINITION = {
    "name": "rmsnorm_h64",
    "op_type": "rmsnorm",
    "axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": 64}},
    "inputs": {
        "hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "float32"},
        "weight": {"shape": ["hidden_size"], "dtype": "float32"},
    },
    "reference": "def run(hidden_states, weight):\n    EPS = 1e-5\n",
}


def test_workloads_of_flashinfer_are_calls(tmp_path: Path) -> None:
    workloads = tmp_path / "workloads" / "rmsnorm"
    definitions = tmp_path / "definitions" / "rmsnorm"
    workloads.mkdir(parents=True)
    definitions.mkdir(parents=True)
    (definitions / "rmsnorm_h64.json").write_text(json.dumps(DEFINITION))
    lines = [
        {"definition": name, "workload": {"uuid": "a", "axes": axes, "inputs": {}}}
        for name, axes in (("rmsnorm_h64", {"batch_size": 7}), ("gemm_n8_k8", {"M": 3}))
    ]
    file = workloads / "rmsnorm_h64.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    (one,) = foreign.read(str(file))
    assert (one.call.op, one.call.inputs["eps"], one.call.dtype) == ("rms_norm", 1e-5, "float32")
    assert one.call.inputs["x"] == dense(7, 64)
    assert one.call.inputs["weight"] == dense(64)


def test_a_table_of_tracelens_is_measured(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "unified_perf_summary.csv"
    columns = ["name", "Input Dims", "Input type", "Input Strides", "Concrete Inputs"]
    row = ["aten::layer_norm", "((2, 3, 64), (), (64,), (64,), (), ())",
           "('float', 'ScalarList', 'float', 'float', 'Scalar', 'Scalar')",
           "((192, 64, 1), (), (1,), (1,), (), ())",
           "('', '[64]', '', '', '1e-12', 'True')"]  # fmt: skip
    with file.open("w", newline="", encoding="utf-8") as to:
        table_ = csv.writer(to)
        table_.writerow([*columns, "operation_count", "Kernel Time (µs)_sum"])
        table_.writerow([*row, 10, 39.5])
    out = tmp_path / "out"
    given = ("--device", "cpu", "--no-compile", "--out", str(out), "--from", str(file))
    assert command(["scan", *given]) == 0
    (one,) = json.loads((out / "scan.json").read_text())["scan"]["served"]
    assert (one["op"], one["calls"], one["now_us"]) == ("layer_norm", 10.0, {"fwd": 39.5})
    assert one["times"]["fwd"]["native"]["us"] > 0
    (case,) = read(out / "suite.json").cases
    assert case.inputs["eps"] == 1e-12


def test_a_trace_is_ranked_without_a_script(tmp_path: Path) -> None:
    x = torch.randn(8, 64)
    traced(tmp_path, "mine", lambda: F.softmax(x, -1))
    out = tmp_path / "out"
    given = ("--device", "cpu", "--no-compile", "--out", str(out))
    assert command(["scan", *given, "--from", str(tmp_path / "mine.json")]) == 0
    found = json.loads((out / "scan.json").read_text())["scan"]
    assert {one["op"] for one in found["served"]} == {"softmax"}
    assert "aten::_softmax" in {row["name"] for row in found["rows"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "got neither"),
        (("--from", "none.json"), "expected a file"),
        (("--from", __file__), "expected a trace"),
    ],
)
def test_what_cannot_be_read_is_refused(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capfd: Any
) -> None:
    assert command(["scan", "--device", "cpu", "--out", str(tmp_path), *arguments]) == 2
    assert words in capfd.readouterr().err
