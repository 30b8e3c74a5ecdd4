"""Which implementation "auto" takes: the order, reasons, rules and their files, and aten."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ops.forks import in_a_fork
from torch import Tensor

import fuseline
from fuseline import table
from fuseline.core import onednn
from fuseline.core.selection import rules, tuned
from fuseline.core.selection.auto import serving
from fuseline.core.selection.rules import DTYPE, Fact
from fuseline.core.selection.select import Auto, Choice, Parts, Selector
from fuseline.core.selection.tuned import TunedError
from fuseline.ops.layer_norm.op import SELECTOR as LAYER_NORM
from fuseline.ops.log_softmax.op import SELECTOR as LOG_SOFTMAX
from fuseline.ops.rms_norm.op import SELECTOR as RMS_NORM
from fuseline.ops.softmax.op import SELECTOR as SOFTMAX

ROOT = Path(__file__).parents[2]
EVIDENCE = {"run": "out/run", "cells": 3, "ratio": 0.7}


def rule(direction: str, impl: str, **where: Any) -> dict[str, Any]:
    return {"direction": direction, "where": where, "impl": [impl], "evidence": EVIDENCE}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Write a user's own rules, which hold until the test ends."""
    monkeypatch.setenv(tuned.FOLDER, str(tmp_path))
    known = (LAYER_NORM, LOG_SOFTMAX, RMS_NORM, SOFTMAX)

    def write(op: str, *those: Any, machine: str = "cpu") -> Path:
        file = tmp_path / op / "rules" / f"{machine}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"machine": machine, "rules": those}))
        for selector in known:
            selector._forget()
        return file

    yield write
    monkeypatch.undo()
    for selector in known:
        selector._forget()


class Fakes:
    """Implementations "first", "part" (even columns only) and "ruled" that say who was called."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def choice(self, name: str, unsupported: Any = None, by_rule: bool = False) -> Choice:
        def say(*args: Any) -> str:
            return name

        parts = Parts(say, *(lambda *args, half=half: f"{name} {half}" for half in ("fwd", "bwd")))
        return Choice(name, say, say, lambda d: None, unsupported, by_rule, parts, parts)

    def selector(self, *names: str) -> Selector:
        def part(direction: str, x: Tensor) -> str | None:
            self.asked.append(direction)
            return f"{x.shape[-1]} columns are odd" if x.shape[-1] % 2 else None

        def eager(selector: Selector, device_type: str) -> Callable[..., Any]:
            run, apply = serving(
                selector, "eager", lambda f, b: lambda x: (f(x), b(x)), device_type
            )
            return lambda x: apply(x) if x.requires_grad else run(x)

        kinds = {
            "first": self.choice("first"),
            "part": self.choice("part", part),
            "ruled": self.choice("ruled", by_rule=True),
        }
        facts = {
            DTYPE: Fact(lambda x: x.dtype),
            "columns": Fact(lambda x: x.shape[-1], (8, 64)),
        }
        last = Choice("slow", *(lambda *args: "slow",) * 2, lambda d: None)
        choices = (*(kinds[name] for name in names), last)
        return Selector("softmax", choices, lambda *args: None, Auto(facts, eager))


def test_the_first_without_a_reason_runs() -> None:
    fakes = Fakes()
    auto = fakes.selector("part", "first").calls["auto", "cpu"]
    assert auto(torch.ones(2, 4)) == "part"
    assert auto(torch.ones(2, 3)) == "first"
    only = Fakes().selector("part").calls["auto", "cpu"]
    with pytest.warns(RuntimeWarning, match="slow 'slow' .* part: 3 columns are odd"):
        assert only(torch.ones(2, 3)) == "slow"


def test_where_nothing_depends_on_arguments_no_code_runs(write: Callable[..., Path]) -> None:
    write("softmax", rule("fwd", "ruled", dtype=["float64"]), machine="sm_90")
    selector = Fakes().selector("first", "ruled")
    assert selector.calls["auto", "cpu"] is selector.calls["first", "cpu"]
    fakes = Fakes()
    assert fakes.selector("first", "part").calls["auto", "cpu"](torch.ones(2, 4)) == "first"
    assert fakes.asked == []


def test_a_call_of_another_dtype_is_asked_for_nothing_else(write: Callable[..., Path]) -> None:
    write("softmax", rule("fwd", "ruled", dtype=["float64"], columns=[9, None]))
    pick = Fakes().selector("first", "ruled").pick("fwd", "cpu")
    assert callable(pick)
    assert pick(SimpleNamespace(dtype=torch.float32)) == "first"
    assert pick(torch.ones(2, 9, dtype=torch.float64)) == "ruled"
    assert pick(torch.ones(2, 8, dtype=torch.float64)) == "first"


def test_forward_and_backward_are_picked_apart(write: Callable[..., Path]) -> None:
    write("softmax", rule("bwd", "ruled", columns=[9, 64]), rule("fwd", "part", columns=[64, None]))
    auto = Fakes().selector("first", "part", "ruled").calls["auto", "cpu"]
    seen = {n: auto(torch.ones(1, n, requires_grad=True)) for n in (8, 9, 64, 66, 67)}
    assert seen == {
        8: ("first fwd", "first bwd"),
        9: ("first fwd", "ruled bwd"),
        64: ("part fwd", "ruled bwd"),
        66: ("part fwd", "first bwd"),
        67: ("first fwd", "first bwd"),
    }


def test_a_known_bad_cell_is_left_to_the_next(write: Callable[..., Path]) -> None:
    bad = {"direction": "bwd", "where": {"columns": [4, 4]}, "impl": ["first"],
           "bad": "dx is NaN", "report": "https://example.org/1"}  # fmt: skip
    write("softmax", bad, machine="any")
    selector = Fakes().selector("first", "part")
    assert selector.calls["auto", "cpu"](torch.ones(1, 4, requires_grad=True))[1] == "part bwd"
    assert selector.calls["auto", "cpu"](torch.ones(1, 6, requires_grad=True))[1] == "first bwd"
    reason = selector.refusal("first", "bwd", "cpu", torch.ones(1, 4))
    assert reason == "columns 4 to 4: dx is NaN (https://example.org/1)"


def test_the_users_own_file_wins_and_an_unknown_machine_has_the_order(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "OPS", tmp_path / "shipped")
    shipped = tmp_path / "shipped" / "softmax" / "rules"
    shipped.mkdir(parents=True)
    text = json.dumps({"rules": [rule("fwd", "aten", columns=[9, None])]})
    (shipped / "sm_90.json").write_text(text)
    facts, names = SOFTMAX.auto.facts, SOFTMAX.names
    found = rules.find("softmax", "sm_90", facts, names)
    assert [str(r) for r in found.rules] == [
        "columns from 9: aten (run out/run, cells 3, ratio 0.7)"
    ]
    assert rules.find("softmax", "sm_100", facts, names) == rules.Rules("sm_100")
    mine = write("softmax", machine="sm_90")
    assert rules.find("softmax", "sm_90", facts, names) == rules.Rules("sm_90", (mine,))


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"direction": "up"}, "direction", "got 'up', expected one of: fwd, bwd"),
        ({"impl": ["cublas"]}, "impl", "got 'cublas', expected one of: cuda, cpu, aten, eager"),
        ({"impl": []}, "impl", "got [], expected a list"),
        ({"where": {"colour": [1, 2]}}, "where.colour", "expected one of: dtype, columns, rows"),
        ({"where": {"columns": [1]}}, "where.columns", "got [1], expected [first, last]"),
        ({"where": {"dtype": ["long11"]}}, "where.dtype", "got ['long11'], expected names"),
        ({"where": None}, "where", "got None, expected an object of facts"),
        ({"evidence": {}}, "evidence", "missing"),
        ({"bad": "NaN"}, "report", "missing"),
        ({"speed": 3}, "speed", "expected one of: direction, where, impl"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_key(
    write: Callable[..., Path], change: dict[str, Any], key: str, words: str
) -> None:
    file = write("softmax", {**rule("fwd", "aten"), **change})
    with pytest.raises(TunedError) as raised:
        fuseline.softmax(torch.ones(2, 3))
    assert str(raised.value).startswith(f"{file}: rules[0].{key}: ")
    assert words in str(raised.value)


def test_a_file_of_something_else_is_named(write: Callable[..., Path]) -> None:
    file = write("softmax")
    file.write_text("[1, 2")
    with pytest.raises(TunedError, match="cannot be read"):
        rules.load(file, {}, ())
    file.write_text("[1, 2]")
    with pytest.raises(TunedError, match="rules: got None, expected a list"):
        rules.load(file, {}, ())


def test_rules_are_written_as_they_are_read(write: Callable[..., Path]) -> None:
    where = {"dtype": ["float64"], "columns": [9, None], "dense": [True]}
    file = write("softmax", rule("bwd", "aten", **where))
    before = SOFTMAX.rules("cpu").rules
    rules.save(file, "cpu", before)
    SOFTMAX._forget()
    assert SOFTMAX.rules("cpu").rules == before


def test_no_shipped_rule_depends_on_what_results_must_not() -> None:
    for selector in (LAYER_NORM, LOG_SOFTMAX, RMS_NORM, SOFTMAX):
        facts = selector.auto.facts
        for file in rules.shipped_files(selector.op):
            for one in rules.load(file, facts, selector.names):
                assert not any(facts[name].promised for name in one.where) or one.bad, one


def gradients(op: str, impl: str, *tensors: Tensor | None) -> list[Tensor]:
    given = [t if t is None else t.detach().requires_grad_() for t in tensors]
    y = getattr(fuseline, op)(*given, impl=impl)
    dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y, *torch.autograd.grad(y, [t for t in given if t is not None], dy)]


@pytest.mark.parametrize("impl", ["aten", "auto"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize(
    ("op", "parameters"),
    [("softmax", 0), ("log_softmax", 0), *(("layer_norm", k) for k in range(3))],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_aten_beside_fp64(
    write: Callable[..., Path],
    op: str,
    parameters: int,
    dtype: torch.dtype,
    direction: str,
    impl: str,
) -> None:
    write(op, rule(direction, "aten"))
    x = torch.randn(5, 77, 3, dtype=dtype).mT
    tensors = (x, *(torch.randn(77, dtype=dtype) for _ in range(parameters)))
    found = gradients(op, impl, *tensors)
    expected = gradients(op, "cpu", *(t.double() for t in tensors))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, rtol=0, atol=200 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_aten_along_any_dim_and_twice(op: str) -> None:
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    public = getattr(fuseline, op)
    assert torch.autograd.gradgradcheck(lambda x: public(x, 1, impl="aten"), x)
    assert torch.autograd.gradcheck(lambda x: public(x[:0], 1, impl="aten"), x)
    assert torch.equal(public(x, 0, impl="aten"), getattr(torch, op)(x, 0))
    negative = torch._neg_view(x.detach())
    torch.testing.assert_close(public(negative, 1, impl="aten"), getattr(torch, op)(-x, 1))


def test_what_aten_does_not_serve_is_refused_before_anything_runs() -> None:
    x, weight = torch.ones(2, 8, dtype=torch.float64), torch.ones(8)
    with pytest.raises(
        RuntimeError, match=r"'aten' cannot run here: weight has dtype torch\.float32"
    ):
        fuseline.layer_norm(x, weight, impl="aten")
    with pytest.raises(RuntimeError, match=r"eps is 1e-40, expected 0 or at least 1\.18e-38"):
        fuseline.layer_norm(x.float(), eps=1e-40, impl="aten")  # which is 0 to torch's kernel
    with pytest.raises(RuntimeError, match=r"eps is 1e\+39, .* at most 3\.4e\+38, as float32"):
        fuseline.layer_norm(x.float(), eps=1e39, impl="aten")  # which is Inf to it
    half, bias = torch.ones(2, 8).half().requires_grad_(), torch.ones(8)
    fuseline.layer_norm(half.detach(), None, bias, impl="aten")
    with pytest.raises(RuntimeError, match="gradient of a bias without a weight"):
        fuseline.layer_norm(half, None, bias, impl="aten")
    long = torch.full((70000,), 0.82).half()  # whose exponentials come to more than float16 has
    with pytest.raises(RuntimeError, match=r"its sum over 70000 elements in torch\.float16 may"):
        fuseline.log_softmax(long, impl="aten")
    assert fuseline.log_softmax(long[:65504], impl="aten").isfinite().all()
    if reason := RMS_NORM.unavailable("aten", "cpu"):
        assert "_fused_rms_norm" in reason
        with pytest.raises(RuntimeError, match="_fused_rms_norm"):
            fuseline.rms_norm(x, impl="aten")


def test_auto_leaves_to_others_what_aten_does_not_serve(write: Callable[..., Path]) -> None:
    write("layer_norm", rule("fwd", "aten"), rule("bwd", "aten"))
    x, weight = torch.randn(4, 9, dtype=torch.float64), torch.randn(9)
    told = fuseline.explain_choice(fuseline.layer_norm, x, weight)
    assert (told.fwd.impl, told.bwd.impl) == ("cpu", "cpu")
    assert dict(told.fwd.others)["aten"].startswith("weight has dtype torch.float32, expected")
    for a, b in zip(gradients("layer_norm", "auto", x, weight),
                    gradients("layer_norm", "cpu", x, weight), strict=True):  # fmt: skip
        assert torch.equal(a, b)


@pytest.mark.usefixtures("given_back")
def test_aten_stays_atens_while_ours_takes_over() -> None:
    x = torch.randn(3, 50, requires_grad=True)
    before = gradients("softmax", "aten", x)
    fuseline.enable("softmax")
    served = [s.calls for s in fuseline.status().served]
    assert all(map(torch.equal, gradients("softmax", "aten", x), before))
    assert [s.calls for s in fuseline.status().served] == served
    torch.softmax(x, -1)
    assert [s.calls for s in fuseline.status().served] != served


def compiled(x: Tensor, fn: Any = fuseline.log_softmax, **options: Any) -> tuple[Any, list[str]]:
    """Compile, run forward and backward; return the function and the graphs' operators of ours."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    seen: list[str] = []

    def keep(graph: Any, example: Any) -> Any:
        seen.extend(str(n.target) for n in graph.graph.nodes if "fuseline" in str(n.target))
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    call = torch.compile(fn, backend=backend, fullgraph=True, **options)
    y = call(x)
    if y.requires_grad:
        y.sum().backward()
    return call, seen


def test_a_compiled_graph_holds_what_was_picked(write: Callable[..., Path]) -> None:
    ours = ["fuseline._log_softmax.default", "fuseline._log_softmax_bwd.default"]
    theirs = "fuseline._log_softmax_bwd__aten.default"
    write("log_softmax", rule("bwd", "aten", dtype=["float64"], columns=[9, None]))
    x = torch.randn(3, 9, requires_grad=True)
    assert compiled(x)[1] == ours
    assert compiled(x.detach())[1] == ["fuseline._log_softmax.default"]
    wide = x.detach().double().requires_grad_()
    assert compiled(wide)[1] == [ours[0], theirs]
    y = fuseline.log_softmax(wide, impl="cpu")
    torch.testing.assert_close(wide.grad, torch.autograd.grad(y.sum(), wide)[0])
    with torch.inference_mode():
        assert compiled(x.detach())[1] == ["fuseline._log_softmax.default"]


def test_symbolic_sizes_bring_no_guard(write: Callable[..., Path]) -> None:
    write("log_softmax", rule("bwd", "aten", columns=[9, None]))
    call, seen = compiled(torch.randn(33, 12, requires_grad=True), dynamic=True)
    assert seen[-1] == "fuseline._log_softmax_bwd.default"  # of fewer columns it would be wrong
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (3, 9, 100):
            call(torch.randn(33, n, requires_grad=True))
    x = torch.randn(33, 12, requires_grad=True)
    torch._dynamo.mark_dynamic(x, 0)
    assert compiled(x)[1][-1] == "fuseline._log_softmax_bwd__aten.default"


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_has_the_order_alone(write: Callable[..., Path], strict: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return fuseline.log_softmax(x)

    write("log_softmax", rule("fwd", "aten"))
    program = torch.export.export(Model(), (torch.randn(3, 9),), strict=strict)
    assert "fuseline.log_softmax.default" in [str(n.target) for n in program.graph.nodes]


def test_functional_transforms_and_modes_go_by_the_operator(write: Callable[..., Path]) -> None:
    write("softmax", rule("fwd", "aten"), rule("bwd", "aten"))
    x = torch.randn(4, 5, dtype=torch.float64)
    expected = torch.softmax(x, -1)
    torch.testing.assert_close(torch.func.vmap(fuseline.softmax)(x), expected)
    torch.testing.assert_close(
        torch.func.grad(lambda x: fuseline.softmax(x).square().sum())(x),
        torch.func.grad(lambda x: torch.softmax(x, -1).square().sum())(x),
    )
    for op in (torch.ops.fuseline.softmax__aten, torch.ops.fuseline.softmax__auto):
        torch.library.opcheck(op.default, (x.requires_grad_(), -1))


def test_explain_choice_says_what_runs_and_why_not_the_others(write: Callable[..., Path]) -> None:
    file = write("log_softmax", rule("bwd", "aten", dtype=["float64"], columns=[9, None]))
    x = torch.randn(3, 9, dtype=torch.float64)
    text = f"""log_softmax on cpu; rules: {file}
forward: cpu, the first in order that can (cuda, cpu)
  not cuda: it needs x on cuda, got cpu
  not aten: no rule names it
  not eager: it comes after cpu
backward: aten, by the rule dtype float64, columns from 9: aten (run out/run, cells 3, ratio 0.7)
  not cuda: it needs x on cuda, got cpu
  not cpu: it comes after aten
  not eager: it comes after aten"""
    assert str(fuseline.explain_choice(fuseline.log_softmax, x)) == text
    told = fuseline.explain_choice(fuseline.log_softmax, x, dim=0)
    assert (told.bwd.impl, dict(told.bwd.others)["aten"]) == (
        "cpu",
        "columns is 3, expected from 9",
    )
    masked = fuseline.explain_choice(fuseline.softmax, x, causal=True)
    assert (masked.op, masked.rules) == ("masked_softmax", ())
    with pytest.raises(ValueError, match="dim is 7"):
        fuseline.explain_choice(fuseline.softmax, x, dim=7)
    with pytest.raises(TypeError, match="op is relu, expected a public function of fuseline"):
        fuseline.explain_choice(torch.relu, x)


# What is made of operators is served as the one that has a choice.
SERVED_AS = {"multihead_attention": "attention", "linear_cross_entropy": "cross_entropy"}


def test_every_public_function_can_be_explained() -> None:
    for name, spec in table.load().items():
        case = next(c for c in spec.cases if "check" in c.suites)
        cpu = torch.device("cpu")
        inputs = spec.inputs(case, spec.dtypes[-1], cpu, torch.Generator())
        told = fuseline.explain_choice(getattr(fuseline, name), **inputs)
        assert (told.op, told.machine) == (SERVED_AS.get(name, name), "cpu")
        names = {impl.name for impl in table.load()[told.op].implementations}
        assert told.fwd.impl in (names & {"cpu"} or names - {"eager"})


def test_the_page_of_choices_is_what_implementations_say() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    import choices

    assert choices.PAGE.read_text() == choices.page(), "python tools/choices.py --write"


def test_import_reads_no_rules(tmp_path: Path) -> None:
    code = """
import fuseline
from fuseline.ops.softmax.op import SELECTOR
assert not SELECTOR._rules and ("auto", "cpu") not in SELECTOR.calls
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_raw_operators_over_atens_kernels_check_what_they_are_given() -> None:
    y = torch.log_softmax(torch.randn(3, 8), -1)
    freed = torch.randn(3, 8)
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="dy has elements, but its memory was freed"):
        torch.ops.fuseline._log_softmax_bwd__aten(freed, y, -1)
    with pytest.raises(ValueError, match="log_softmax: dy has shape"):
        torch.ops.fuseline._log_softmax_bwd__aten(y[:2], y, -1)
    dy, x, w = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
    mean, rstd = torch.zeros(1).expand(4), torch.ones(1).expand(4)
    call = torch.ops.fuseline._layer_norm_bwd__aten
    spread = call(dy, x, w, mean, rstd, True, True, True)
    dense = call(dy, x, w, mean.clone(), rstd.clone(), True, True, True)
    assert all(map(torch.equal, spread, dense))


def test_without_an_instruction_set_auto_is_eager_and_cpu_says_why() -> None:
    in_a_fork({"FUSELINE_CPU_ISA": "none"}, "ops.test_selection", "without_an_instruction_set")


def without_an_instruction_set() -> None:
    x, why = torch.randn(3, 7, requires_grad=True), "this processor lacks AVX2, FMA or F16C"
    with pytest.warns(RuntimeWarning, match=why):
        y = fuseline.rms_norm(x)
    assert torch.equal(y, fuseline.rms_norm(x, impl="eager"))
    with pytest.raises(RuntimeError, match=f'{why}.*; impl="eager"'):
        fuseline.rms_norm(x, impl="cpu")
    for op, *args in (("rms_norm", None, 1e-6), ("softmax", -1), ("bias_gelu", x[0], "none")):
        with pytest.raises(RuntimeError, match=f"fuseline: {why}"):
            getattr(torch.ops.fuseline, op)(x, *args)
    left = [each for each in fuseline.status().left if each.device == "cpu"]
    assert left
    assert all(each.calls == "all calls" and why in each.why for each in left)


@pytest.mark.parametrize("able", [True, False])
def test_onednn_is_refused_numbers_that_the_processor_has_no_kernels_for(monkeypatch, able):
    monkeypatch.setattr(onednn, "BFLOAT16", able)
    assert onednn.refusal("a", torch.float32) is None
    assert "expected float32 or bfloat16" in str(onednn.refusal("a", torch.float16))
    assert (onednn.refusal("a", torch.bfloat16) is None) is able


def test_auto_takes_bfloat16_on_any_processor():
    a, b, bias = (torch.randn(s).bfloat16() for s in ((5, 8), (8, 6), (6,)))
    wanted = torch.nn.functional.gelu((a @ b + bias).float(), approximate="tanh")
    y = fuseline.matmul_add_gelu(a, b, bias)
    torch.testing.assert_close(y.float(), wanted, rtol=2e-2, atol=2e-2)
    x, w, z = (
        torch.randn(s).bfloat16().to(memory_format=torch.channels_last)
        for s in ((1, 3, 6, 6), (4, 3, 3, 3), (1, 4, 6, 6))
    )
    wanted = (torch.nn.functional.conv2d(x.float(), w.float(), padding=1) + z.float()).relu()
    y = fuseline.conv_add_relu(x, w, None, z, padding=1)
    torch.testing.assert_close(y.float(), wanted, rtol=2e-2, atol=4e-2)
