"""Rivals, mostly without them: fake modules in their place on the CPU; the real ones on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_rivals import fake, installed
from torch import Tensor

from fuselab import environment, rivals
from fuselab.command_line.cli import command
from fuselab.commands import select
from fuselab.model import Group, Measurement, Proof, Status
from fuselab.planning.plan import CEILING, Filters
from fuselab.rivals.rival import Rival
from fuselab.worker import group
from fuselab.worker.implementations import baselines
from fuselab.worker.implementations.baselines import Unsupported
from fuselab.worker.operators import specs
from fuseline import rms_norm
from fuseline.core.specs.spec import Direction, OpSpec
from fuseline.ops.rms_norm import impl_eager
from fuseline.testing.oracle import accuracy

OWN = ("eager", "native", "cpu", "triton", "cuda", "torchscript", "compile")
BOTH = ("liger", "quack")
CASE = "4x128x32"


@pytest.fixture
def spec() -> OpSpec:
    return specs.load()["rms_norm"]


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "gpu" not in request.keywords:
        installed(monkeypatch)


def fake_liger(monkeypatch: pytest.MonkeyPatch, apply: Any) -> None:
    installed(monkeypatch, "liger-kernel")
    fake(monkeypatch, "liger_kernel.ops", LigerRMSNormFunction=SimpleNamespace(apply=apply))


def measure(impl: str, direction: Direction = "fwd", dtype: str = "float32") -> Measurement:
    found: list[Measurement] = []

    def emit(kind: str, *event: Any) -> None:
        if kind == "result":
            found.extend(event)

    where = (CASE, dtype, direction, "contiguous", "cpu")
    group.run(Group("rms_norm", *where, (impl,), precision="quick"), frozenset(), emit)
    (measurement,) = found
    return measurement


@pytest.mark.parametrize("name", BOTH)
def test_an_absent_rival_is_unsupported_and_says_so(name: str, spec: OpSpec) -> None:
    reason = f"{rivals.of('rms_norm')[name].package} is not installed"
    with pytest.raises(Unsupported, match=reason):
        baselines.make(spec, name, "cuda")
    cell = measure(name)
    assert (cell.status, cell.reason) == (Status.UNSUPPORTED, reason)


def test_a_rival_without_a_gpu_says_what_it_needs(
    spec: OpSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, "quack-kernels")
    with pytest.raises(Unsupported, match=r"quack-kernels 9\.1 runs here on cuda only, got cpu"):
        baselines.make(spec, "quack", "cpu")


def test_what_stops_the_import_is_named(spec: OpSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "liger-kernel", "quack-kernels")
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(Unsupported, match=r"liger-kernel 9\.1 cannot be loaded: ModuleNotFound"):
        baselines.make(spec, "liger", "cuda")
    fake(monkeypatch, "quack.rmsnorm")  # a version whose function has another name
    with pytest.raises(Unsupported, match=r"quack-kernels 9\.1 cannot be loaded: .*'rmsnorm'"):
        baselines.make(spec, "quack", "cuda")


def test_liger_rounds_once_and_leaves_dy_alone(
    spec: OpSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_liger(monkeypatch, lambda *given: given)
    called = baselines.make(spec, "liger", "cuda")(x="x", weight=None, eps=1e-5)
    assert called == ("x", None, 1e-5, 0.0, "gemma", False)
    shifted = baselines.make(spec, "liger", "cuda")(x="x", weight="w", eps=1e-5, weight_offset=1.0)
    assert shifted == ("x", "w", 1e-5, 1.0, "gemma", False)


def test_quack_is_given_eps_by_its_name(spec: OpSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "quack-kernels")
    fake(monkeypatch, "quack.rmsnorm", rmsnorm=lambda *given, **named: (given, named))
    called = baselines.make(spec, "quack", "cuda")(x="x", weight="w", eps=1e-5)
    assert called == (("x", "w"), {"eps": 1e-5})


@pytest.mark.parametrize(
    ("name", "length", "dtype", "words"),
    [
        ("liger", 64, torch.float64, "x is float64, it takes float16, bfloat16, float32"),
        ("quack", 64, torch.float64, "x is float64, it takes float16, bfloat16, float32"),
        ("quack", 61, torch.bfloat16, "a row of 61 halves is not whole"),
        ("quack", 61, torch.float32, ""),
        ("quack", 130, torch.bfloat16, ""),
        ("liger", 61, torch.bfloat16, ""),
    ],
)
def test_inputs_that_a_rival_cannot_take_are_known_before_a_call(
    name: str, length: int, dtype: torch.dtype, words: str, spec: OpSpec
) -> None:
    given = {"x": torch.ones(2, length, dtype=dtype), "weight": None, "eps": 1e-6}
    if words:
        with pytest.raises(Unsupported, match=words):
            baselines.refuse(spec, name, given)
    else:
        baselines.refuse(spec, name, given)
    baselines.refuse(spec, "eager", given)


def test_quack_has_no_offset_and_says_so(spec: OpSpec) -> None:
    given = {"x": torch.ones(2, 8), "weight": torch.ones(8), "eps": 1e-6, "weight_offset": 1.0}
    with pytest.raises(Unsupported, match="it adds nothing to the weight"):
        baselines.refuse(spec, "quack", given)


@pytest.mark.parametrize(
    ("op", "function", "given", "passed"),
    [
        ("softmax", "LigerSoftmaxFunction", {"x": "x", "dim": -1}, ("x",)),
        ("layer_norm", "LigerLayerNormFunction",
         {"x": "x", "weight": "w", "bias": "b", "eps": 1e-5}, ("x", "w", "b", 1e-5)),
    ],
)  # fmt: skip
def test_liger_is_called_as_it_stands(
    op: str,
    function: str,
    given: dict[str, Any],
    passed: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, "liger-kernel")
    apply = SimpleNamespace(apply=lambda *given: given)
    fake(monkeypatch, "liger_kernel.ops", **{function: apply})
    assert baselines.make(specs.load()[op], "liger", "cuda")(**given) == passed


def test_ligers_swiglu_has_a_function_for_each_form(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "liger-kernel")
    functions = {
        name: SimpleNamespace(apply=lambda *given, name=name: (name, *given))
        for name in ("LigerSiLUMulFunction", "LigerFusedGateUpSiLUMulFunction")
    }
    fake(monkeypatch, "liger_kernel.ops", **functions)
    swiglu = baselines.make(specs.load()["swiglu"], "liger", "cuda")
    assert swiglu(a="a", b="b") == ("LigerSiLUMulFunction", "a", "b")
    assert swiglu(a="ab", b=None) == ("LigerFusedGateUpSiLUMulFunction", "ab", False)


def test_ligers_geglu_knows_tanh_and_two_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "liger-kernel")
    apply = SimpleNamespace(apply=lambda *given: given)
    fake(monkeypatch, "liger_kernel.ops", LigerGELUMulFunction=apply)
    spec = specs.load()["geglu"]
    assert baselines.make(spec, "liger", "cuda")(a="a", b="b", approximate="tanh") == ("a", "b")
    given = {"a": torch.ones(2, 8), "b": torch.ones(2, 8), "approximate": "tanh"}
    baselines.refuse(spec, "liger", given)
    for change, words in (
        ({"b": None}, "a and b apart only"),
        ({"approximate": "none"}, "the formula of tanh only"),
    ):
        with pytest.raises(Unsupported, match=words):
            baselines.refuse(spec, "liger", given | change)


def test_ligers_rope_is_told_how_wide_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "liger-kernel")
    apply = SimpleNamespace(apply=lambda *given: given)
    fake(monkeypatch, "liger_kernel.ops", LigerRopeFunction=apply)
    spec, table = specs.load()["rope"], torch.ones(3, 4)
    heads = {"q": torch.ones(1, 2, 3, 10), "k": torch.ones(1, 1, 3, 10)}
    given = {**heads, "cos": table, "sin": table, "interleaved": False}
    called: Any = baselines.make(spec, "liger", "cuda")(**given)
    assert called[4:] == (None, 1, 8)
    with pytest.raises(Unsupported, match="a half apart only"):
        baselines.refuse(spec, "liger", given | {"interleaved": True})


def test_cross_entropies_are_given_rows_and_what_each_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, "liger-kernel", "quack-kernels")
    apply = SimpleNamespace(apply=lambda *given: (given, "z"))
    fake(monkeypatch, "liger_kernel.ops", LigerCrossEntropyFunction=apply)
    fake(monkeypatch, "quack.cross_entropy", cross_entropy=lambda *given, **named: (given, named))
    spec, rows = specs.load()["cross_entropy"], torch.ones(2, 3, 8)
    given = {"logits": rows, "target": torch.ones(2, 3, dtype=torch.int64), "weight": None}
    given |= {"ignore_index": -1, "reduction": "mean"}
    given |= {"label_smoothing": 0.1, "z_loss": 0.2, "softcap": 3.0}
    called: Any = baselines.make(spec, "liger", "cuda")(**given)
    assert (called[0].shape, called[1].shape) == ((6, 8), (6,))
    assert called[2:] == (None, -1, 0.2, 0.1, "mean", 3.0)
    called, named = baselines.make(spec, "quack", "cuda")(**given)
    assert (called[0].shape, called[1].shape) == ((6, 8), (6,))
    assert named == {"weight": None, "ignore_index": -1, "reduction": "mean"}
    baselines.refuse(spec, "liger", given)
    with pytest.raises(Unsupported, match="by the number of rows"):
        baselines.refuse(spec, "liger", given | {"weight": torch.ones(8)})
    with pytest.raises(Unsupported, match="neither label_smoothing nor z_loss nor softcap"):
        baselines.refuse(spec, "quack", given)


def test_linear_cross_entropies_are_given_what_each_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "liger-kernel", "cut-cross-entropy")
    apply = SimpleNamespace(apply=lambda *given: (given, "z"))
    fake(monkeypatch, "liger_kernel.ops", LigerFusedLinearCrossEntropyFunction=apply)
    fake(monkeypatch, "cut_cross_entropy", linear_cross_entropy=lambda *given: given)
    spec, weight = specs.load()["linear_cross_entropy"], torch.ones(5, 8).half()
    given = {"hidden": torch.ones(2, 3, 8).half(), "weight": weight}
    given |= {"target": torch.ones(2, 3, dtype=torch.int64)}
    how: dict[str, Any] = {"bias": None, "ignore_index": -1, "reduction": "mean"}
    how |= {"label_smoothing": 0.1, "z_loss": 0.2, "softcap": 3.0}
    called: Any = baselines.make(spec, "liger", "cuda")(**given, **how)
    assert (called[0].shape, called[2].shape) == ((6, 8), (6,))
    assert called[1] is weight
    assert called[3:] == (None, None, -1, 0.2, 0.1, "mean", 3.0, False, torch.float32)
    called = baselines.make(spec, "cce", "cuda")(**given, **how)
    assert (called[0].shape, called[2].shape, called[3:]) == ((2, 3, 8), (2, 3), (-1, 3.0, "mean"))
    baselines.refuse(spec, "liger", given | how)
    with pytest.raises(Unsupported, match="neither bias nor label_smoothing nor z_loss"):
        baselines.refuse(spec, "cce", given | how)


def test_liger_knows_the_last_dimension_and_both_parameters() -> None:
    x, loaded = torch.ones(2, 8), specs.load()
    baselines.refuse(loaded["softmax"], "liger", {"x": x, "dim": 1})
    with pytest.raises(Unsupported, match="the last dimension only, not 0"):
        baselines.refuse(loaded["softmax"], "liger", {"x": x, "dim": 0})
    given = {"x": x, "weight": torch.ones(8), "bias": torch.ones(8), "eps": 1e-5}
    baselines.refuse(loaded["layer_norm"], "liger", given)
    with pytest.raises(Unsupported, match="a weight and a bias"):
        baselines.refuse(loaded["layer_norm"], "liger", given | {"bias": None})


def test_a_weight_of_a_strange_dtype_is_refused_by_its_name(spec: OpSpec) -> None:
    given = {"x": torch.ones(2, 8), "weight": torch.ones(8, dtype=torch.float64), "eps": 1e-6}
    with pytest.raises(Unsupported, match="weight is float64"):
        baselines.refuse(spec, "liger", given)


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rival, "unavailable", lambda self, device_type: None)


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_rival_is_measured_like_the_others_and_names_its_version(
    direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_liger(monkeypatch, lambda x, w, eps, *_: impl_eager.rms_norm(x, w, eps))
    cell = measure("liger", direction)
    assert cell.status in (Status.OK, Status.NOISY), cell.reason
    assert cell.samples_us
    assert (cell.proof.role, cell.proof.version) == ("rival", "liger-kernel 9.1")


@pytest.mark.usefixtures("on_a_cpu")
def test_a_dtype_that_it_would_compute_in_fp32_costs_it_the_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_liger(monkeypatch, lambda x, w, eps, *_: impl_eager.rms_norm(x, w, eps))
    cell = measure("liger", dtype="float64")
    assert (cell.status, cell.samples_us) == (Status.UNSUPPORTED, ())
    assert "x is float64" in cell.reason


class Limited(torch.autograd.Function):
    """Raises in one direction, as rivals do beyond some length."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, direction: str) -> Tensor:
        ctx.direction = direction
        if direction == "fwd":
            raise RuntimeError("n = 32 exceeds 16")
        return x * 1

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        raise ValueError("does not support N > 16")


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize(
    ("direction", "words"), [("fwd", "n = 32 exceeds 16"), ("bwd", "does not support N > 16")]
)
def test_what_a_rival_raises_is_the_reason_of_an_unsupported_cell(
    direction: Direction, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_liger(monkeypatch, lambda x, *_: Limited.apply(x, direction))
    cell = measure("liger", direction)
    assert cell.status is Status.UNSUPPORTED
    assert words in cell.reason
    assert cell.proof.version == "liger-kernel 9.1"


@pytest.mark.usefixtures("on_a_cpu")
def test_a_rival_that_is_wrong_is_incorrect(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_liger(monkeypatch, lambda x, w, eps, *_: impl_eager.rms_norm(x, w, eps) * 1.1)
    assert measure("liger").status is Status.INCORRECT


def test_the_usual_set_has_those_that_are_installed(
    spec: OpSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert baselines.names(spec) == OWN
    assert baselines.names(spec, ("quack",)) == (*OWN, "quack")
    installed(monkeypatch, "liger-kernel")
    assert baselines.names(spec) == (*OWN, "liger")
    assert baselines.role(spec, "liger") == baselines.role(spec, "quack") == "rival"
    assert baselines.role(spec, "compile") == "baseline"
    assert baselines.identity(Proof(), spec, "cuda", {}, "fwd") == Proof(role="ours")


def test_one_that_is_asked_for_is_planned_whether_installed_or_not() -> None:
    found = select.specs_of(["rms_norm"])
    asked = select.groups(found, Filters(impls=("liger",), device="cpu"))
    assert {g.impls for g in asked} == {("liger", CEILING)}
    assert all("liger" not in g.impls for g in select.groups(found, Filters(device="cpu")))


def test_what_was_measured_beside_another_version_is_measured_again(
    spec: OpSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {select.row(spec).code}
    for version in ("1.0", "1.1"):
        monkeypatch.setattr(environment, "version", lambda name, it=version: it)
        codes.add(select.row(spec).code)
    assert len(codes) == 3


def test_a_users_own_operator_of_the_same_name_has_none(spec: OpSpec) -> None:
    own = replace(spec, cases=spec.cases[:1])
    assert baselines.rivals_of(own) == {}
    assert baselines.names(own, BOTH) == OWN


def test_list_names_them_with_their_versions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, "liger-kernel")
    assert command(["list", "rms_norm"]) == 0
    assert "liger (liger-kernel 9.1), quack (not installed)" in capsys.readouterr().out
    assert command(["list", "rms_norm", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["rivals"] == {"liger": "liger-kernel 9.1", "quack": None, "jax": None}
    assert "liger" in row["impls"]
    assert "quack" not in row["impls"]


def test_importing_the_lab_imports_no_rival() -> None:
    code = (
        "import sys, fuselab.worker.process, fuselab.commands.measuring.run; "
        "names = 'liger_kernel', 'quack', 'flash_attn', 'xformers'; "
        "sys.exit(any(name in sys.modules for name in names))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
@pytest.mark.parametrize("weight", ["same", "float32", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BOTH)
def test_a_rival_computes_what_we_do(
    name: str, dtype: torch.dtype, weight: str, spec: OpSpec
) -> None:
    rival = rivals.of("rms_norm")[name]
    if rival.version is None:
        pytest.skip(f"{rival.package} is not installed")
    kind = {"same": dtype, "float32": torch.float32}.get(weight)
    given = {
        "x": torch.randn(5, 192, dtype=dtype, device="cuda"),
        "weight": None if kind is None else torch.randn(192, dtype=kind, device="cuda"),
        "eps": 1e-6,
    }
    fn = baselines.make(spec, name, "cuda")
    dys = (torch.randn(5, 192, device="cuda").to(dtype),)
    kept = dys[0].clone()
    mine = accuracy.run(rms_norm, spec, given, "bwd", dys)
    theirs = accuracy.run(fn, spec, given, "bwd", dys)
    torch.testing.assert_close(fn(**given), rms_norm(**given))
    torch.testing.assert_close(theirs, mine)
    assert torch.equal(dys[0], kept)
