"""fuselab trace as a user calls it: what ran, what the tables say, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuselab.command_line.cli import command
from fuselab.trace import walk
from fuselab.trace.call import prepare
from fuselab.trace.events import Kind
from fuselab.trace.record import Row, Trace, trace
from fuselab.trace.sentences import _AT, sentence
from fuselab.trace.walk import Step, Turn


def of(expression: str, **options: Any) -> Trace:
    return trace(prepare(expression, **options))


def operators(rows: tuple[Row, ...]) -> list[str]:
    return [row.op for row in rows if row.op]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert command(["trace", *arguments, "--device", "cpu", "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_our_operator_ends_at_the_line_that_registers_its_cpp_kernel() -> None:
    seen = of("fuseline.rms_norm(x, w)")
    assert seen.call.function == "fuseline.rms_norm"
    assert Path(seen.call.place.rsplit(":", 1)[0]).parts[-2:] == ("rms_norm", "op.py")
    (fwd,) = [row for row in seen.forward if row.op == "fuseline::_rms_norm_fwd"]
    assert fwd.walk[-1].turn is Turn.ENDS
    assert "ops/rms_norm/impl_cpu.cpp:" in fwd.walk[-1].place
    assert operators(seen.backward)[0] == "fuseline::_rms_norm_bwd"
    assert fwd.entries == ()


def test_a_node_of_the_backward_names_the_operator_that_made_it() -> None:
    seen = of("(x * 2).exp()")
    made = {
        row.event.name: seen.forward[row.maker].op for row in seen.backward if row.maker is not None
    }
    assert made == {"ExpBackward0": "aten::exp", "MulBackward0": "aten::mul.Tensor"}


def test_a_composite_has_its_parts_below_it_each_with_a_walk() -> None:
    seen = of("F.linear(x, x)")
    rows = {row.op: row for row in seen.forward}
    assert rows["aten::linear"].walk[-1].turn is Turn.DECOMPOSES
    assert rows["aten::matmul"].makes.endswith("; for the others it decomposes")
    assert rows["aten::mm"].walk[-1].key == "CPU"
    assert rows["aten::mm"].makes.startswith("structured")
    files = [entry.file for entry in rows["aten::mm"].entries]
    assert files == ["ATen/native/native_functions.yaml", "autograd/derivatives.yaml"]


def test_what_a_kernel_calls_has_no_walk() -> None:
    seen = of("x.mean(-1)")
    mean, *below = [row for row in seen.forward if row.op]
    assert mean.op == "aten::mean.dim"
    assert mean.walk
    assert below
    assert not any(row.walk for row in below)


@pytest.mark.parametrize(
    ("under", "first"),
    [((), "AutogradCPU"), (("autocast",), "AutocastCPU"), (("inference_mode",), "ADInplaceOrView")],
)
@pytest.mark.parametrize(
    ("call", "op"),
    [("torch.mm(x, x.t())", "aten::mm"), ("fuseline.softmax(x)", "fuseline::_softmax")],
)
def test_under_a_context_the_walk_begins_elsewhere(
    call: str, op: str, under: tuple[str, ...], first: str
) -> None:
    row = next(row for row in of(call, under=under).forward if row.op == op)
    assert row.walk[0].key == first


def test_within_an_overload_that_is_not_shown_nothing_has_a_walk() -> None:
    rows = {row.op: row for row in of("x.std(-1)").forward}
    assert rows["aten::std.dim"].walk[-1].turn is Turn.DECOMPOSES
    assert rows["aten::as_strided"].walk == ()  # of std.correction, which the profiler leaves out


def test_a_setup_has_its_neighbours_and_what_is_printed_is_not_in_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "neighbour_of_setup.py").write_text("def f(x):\n    print('f')\n    return x\n")
    setup = tmp_path / "setup_with_a_neighbour.py"
    setup.write_text("from neighbour_of_setup import f\nprint('setup')\n")
    assert told(capsys, "f(x)", "--setup", str(setup))["call"] == "f(x)"


def test_without_a_gradient_there_is_no_backward() -> None:
    assert of("x * 2", under=("no_grad",)).backward == ()


def test_under_vmap_functorch_comes_first() -> None:
    seen = of("torch.vmap(lambda v: v * 2)(x)")
    (mul,) = [row for row in seen.forward if row.op == "aten::mul.Tensor"]
    assert [step.turn for step in mul.walk] == [Turn.REENTERS]


def test_a_users_setup_and_the_line_of_his_that_called(tmp_path: Path) -> None:
    setup = tmp_path / "setup.py"
    setup.write_text(
        "import torch\n"
        "def block(a):\n"
        "    return torch.mm(a, a).relu()\n"
        "a = torch.ones(2, 2, requires_grad=True)\n"
    )
    seen = of("block(a)", setup=str(setup))
    assert seen.call.place == f"{setup}:2"
    functions = [row.event for row in seen.forward if row.event.kind is Kind.FUNCTION]
    assert [event.name for event in functions] == ["torch.mm", "torch.Tensor.relu"]
    assert {event.function.line for event in functions if event.function} == {f"{setup}:3"}


def test_json_has_every_step_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    record = told(capsys, "F.rms_norm(x, (64,), w)")
    rows = [*record["forward"], *record["backward"]]
    steps = [step for row in rows for step in row["computed"]["walk"]]
    assert len(steps) > 20
    assert all(step["sentence"].endswith(".") for step in steps)
    assert {row["observed"]["kind"] for row in rows} == {"function", "operator", "autograd"}


def test_there_is_a_sentence_for_every_turn_of_every_key_of_torchs_tables() -> None:
    for op in ("aten::mm", "aten::relu_", "aten::rms_norm", "aten::empty.memory_format"):
        for key, entry in walk.table(op).items():
            sentence(Step(key, walk.turn(key, entry), entry.place, entry.origin))
    assert set(Turn) == set(_AT[""]), "every turn has a sentence of its own"


def test_the_page_is_one_file_that_loads_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["trace", "x < w", "--out", str(tmp_path / "new"), "--device", "cpu"]) == 0
    page = (tmp_path / "new" / "trace.html").read_text()
    assert "x &lt; w" in page
    assert "AutogradCPU" in page
    assert "src=" not in page
    assert "href=" not in page


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["x +"], 2, ["CALL", "'x +'", "expression"]),
        (["x = 1"], 2, ["CALL", "expression"]),
        (["nothing(x)"], 1, ["CALL", "NameError", "nothing"]),
        (["torch.mm(x, x)"], 1, ["CALL", "4x64 and 4x64"]),
        (["x", "--setup", "no/such.py"], 2, ["--setup", "no/such.py", "file"]),
        (["x", "--device", "tpu"], 2, ["device", "tpu", "cpu"]),
        (["x", "--out", __file__], 2, ["--out", "folder"]),
    ],
)
def test_errors_name_what_came(
    arguments: list[str], code: int, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["trace", *arguments]) == code
    message = capsys.readouterr().err
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("expression", "code", "words"),
    [
        ("x.exp().add_(1)", 1, "CALL's backward: RuntimeError: one of the variables needed"),
        ("exit()", 1, "CALL: SystemExit"),
        ("(yield x)", 2, "expected a Python expression"),
    ],
)
def test_what_ends_a_call_is_told(
    expression: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["trace", expression, "--device", "cpu"]) == code
    assert words in capsys.readouterr().err


def test_a_setup_that_raises_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup = tmp_path / "broken.py"
    setup.write_text("1 / 0\n")
    assert command(["trace", "x", "--setup", str(setup)]) == 1
    assert "broken.py: ZeroDivisionError" in capsys.readouterr().err


def test_a_torch_without_the_private_names_still_shows_what_ran(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(walk, "NEEDED", (*walk.NEEDED, "_gone_in_this_torch"))
    record = told(capsys, "x * 2")
    assert record["unavailable"] == ["torch._C._gone_in_this_torch"]
    assert "aten::mul" in [row["observed"]["name"] for row in record["forward"]]
    assert not any(row["computed"]["walk"] for row in record["forward"])


@pytest.mark.parametrize(
    ("op", "kinds", "expected"),
    [
        ("aten::mul", ("float", "long int"), "aten::mul.Tensor"),
        ("aten::mul", ("float", "Scalar"), "aten::mul.Scalar"),
        ("aten::cat", ("TensorList", "Scalar"), "aten::cat"),
        ("aten::sum", ("float", ""), "aten::sum"),
        ("aten::sum", ("float", "ScalarList", "Scalar", ""), "aten::sum.dim_IntList"),
        ("aten::no_such_operator", (), ""),
    ],
)
def test_the_overload_is_found_by_the_kinds_of_the_arguments(
    op: str, kinds: tuple[str, ...], expected: str
) -> None:
    assert walk.overload(op, kinds) == expected


@pytest.mark.gpu
def test_on_a_gpu_the_kernels_are_named() -> None:
    seen = of("fuseline.rms_norm(x, w)", device="cuda")
    rows = [row for row in seen.forward if row.op == "fuseline::_rms_norm_fwd"]
    assert rows[0].walk[-1].key == "CUDA"
    assert any(row.event.kernels for row in seen.forward)
