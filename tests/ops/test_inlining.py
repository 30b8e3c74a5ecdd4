"""compile_options: where tables say so, graphs hold the formula in our operator's place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass

import fuseline
from fuseline.core.registration import fingerprint
from fuseline.core.selection import rules, tuned
from fuseline.inlining import table

EVIDENCE = {"run": "none"}
NAMES = ("rms_norm", "add_rms_norm", "layer_norm", "softmax", "log_softmax", "bias_gelu", "swiglu")


def inputs(dtype: torch.dtype = torch.float32, n: int = 24) -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes = {"x": (3, 5, n), "z": (3, 5, n), "w": (n,), "b": (n,)}
    return {k: torch.randn(s).to(dtype) for k, s in shapes.items()}


CALLS: dict[str, Callable[..., Any]] = {
    "rms_norm": lambda x, z, w, b: fuseline.rms_norm(x * 2, w, weight_offset=1.0),
    "rms_norm, no weight": lambda x, z, w, b: fuseline.rms_norm(x * 2),
    "add_rms_norm": lambda x, z, w, b: fuseline.add_rms_norm(x, z * 2, w),
    "add_rms_norm, one output": lambda x, z, w, b: fuseline.add_rms_norm(x, z, w)[0],
    "layer_norm": lambda x, z, w, b: fuseline.layer_norm(x * 2, w, b),
    "layer_norm, no bias": lambda x, z, w, b: fuseline.layer_norm(x * 2, w),
    "softmax": lambda x, z, w, b: fuseline.softmax(x * 2),
    "softmax, not the last": lambda x, z, w, b: fuseline.softmax(x, 1),
    "log_softmax": lambda x, z, w, b: fuseline.log_softmax(x * 2),
    "bias_gelu": lambda x, z, w, b: fuseline.bias_gelu(x, b, "none"),
    "bias_gelu, transposed": lambda x, z, w, b: fuseline.bias_gelu(x.transpose(0, 1), b),
    "swiglu": lambda x, z, w, b: fuseline.swiglu(x * 2, z),
    "swiglu, packed": lambda x, z, w, b: fuseline.swiglu(x * 2),
    "double_softmax": lambda x, z, w, b: fuseline.double_softmax(x),
    "norms": lambda x, z, w, b: fuseline.rms_norm(fuseline.layer_norm(x, w), w),
}


class Seen(CustomGraphPass):
    """Names of our operators in the graphs that it is given."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, graph: Any) -> None:
        for node in graph.nodes:
            if str(node.target).startswith("fuseline."):
                self.names.append(str(node.target).split(".")[1])

    def uuid(self) -> Any:
        return None


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Write tables of the user's for a CPU: says(operator, *rules)."""
    monkeypatch.setenv(tuned.FOLDER, str(tmp_path))

    def write(op: str, *found: dict[str, Any]) -> None:
        file = tmp_path / op / table.FOLDER / "cpu.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"machine": "cpu", "rules": found}))
        table._rules.cache_clear()

    for op in (*NAMES, "double_softmax"):
        write(op)
    yield write
    table._rules.cache_clear()


def rule(direction: str, **where: Any) -> dict[str, Any]:
    return {"direction": direction, "where": where, "impl": ["eager"], "evidence": EVIDENCE}


BOTH = rule("fwd"), rule("bwd")


def compiled(function: Callable[..., Any], dynamic: bool | None = None) -> tuple[Any, list[str]]:
    """Return a function compiled anew with our options, and the names of what its graphs keep."""
    torch._dynamo.reset()
    seen = Seen()
    options = fuseline.compile_options({"joint_custom_post_pass": seen})
    return torch.compile(function, options=options, fullgraph=True, dynamic=dynamic), seen.names


def results(function: Callable[..., Any], given: dict[str, Tensor], grad: bool) -> list[Any]:
    """Return outputs and, with grad, gradients."""
    leaves = {k: t.clone().requires_grad_(grad) for k, t in given.items()}
    out = function(**leaves)
    outs = list(out) if isinstance(out, tuple) else [out]
    if not grad:
        return outs
    torch.manual_seed(1)
    dys = [torch.randn(o.shape).to(o.dtype) for o in outs]
    grads = torch.autograd.grad(outs, [*leaves.values()], dys, allow_unused=True)
    return [*outs, *grads]


@pytest.mark.parametrize("grad", [False, True], ids=["fwd", "bwd"])
@pytest.mark.parametrize("name", CALLS)
def test_the_formula_is_exact(says: Any, name: str, grad: bool) -> None:
    for op in (*NAMES, "double_softmax"):
        says(op, *BOTH)
    given = inputs()
    run, left = compiled(CALLS[name])
    came = results(run, given, grad)
    assert left == []
    wide = results(CALLS[name], {k: t.double() for k, t in given.items()}, grad)
    ours = results(CALLS[name], given, grad)
    for c, w, o in zip(came, wide, ours, strict=True):
        assert (c is None) == (o is None)
        if c is not None:
            assert (c.shape, c.dtype, c.stride()) == (o.shape, o.dtype, o.stride())
            torch.testing.assert_close(c.double(), w, rtol=2e-5, atol=2e-5)


def test_half_types_and_sizes_that_vary(says: Any) -> None:
    says("rms_norm", *BOTH)
    run, left = compiled(CALLS["rms_norm"], dynamic=True)
    for n in (24, 40):
        given = inputs(torch.bfloat16, n)
        came, ours = results(run, given, True), results(CALLS["rms_norm"], given, True)
        for c, o in zip(came, ours, strict=True):
            torch.testing.assert_close(c, o, rtol=2e-2, atol=2e-2)
    assert left == []


def test_checkpointed_blocks_compute_the_formula_again(says: Any) -> None:
    says("layer_norm", *BOTH)

    def block(x: Tensor, z: Tensor, w: Tensor, b: Tensor) -> Tensor:
        def norm(x: Tensor) -> Tensor:
            return fuseline.layer_norm(x * 2, w, b).tanh()

        y: Tensor = torch.utils.checkpoint.checkpoint(norm, x, use_reentrant=False)
        return y

    run, left = compiled(block)
    came, ours = (results(f, inputs(), True) for f in (run, block))
    assert left == []
    for c, o in zip(came, ours, strict=True):
        torch.testing.assert_close(c, o, rtol=2e-5, atol=2e-5)


def test_what_no_table_names_stays(says: Any) -> None:
    run, left = compiled(CALLS["norms"])
    results(run, inputs(), True)
    assert left == ["_layer_norm_fwd", "_rms_norm_fwd", "_rms_norm_bwd", "_layer_norm_bwd"]
    says("rms_norm", rule("bwd"))
    run, left = compiled(CALLS["norms"])
    results(run, inputs(), True)
    assert left == ["_layer_norm_fwd", "_layer_norm_bwd"]
    run, left = compiled(CALLS["norms"])
    results(run, inputs(), False)
    assert left == ["_layer_norm", "_rms_norm"]


@pytest.mark.parametrize(
    ("where", "name", "goes"),
    [
        ({"dtype": ["float32"]}, "rms_norm", True),
        ({"dtype": ["bfloat16"]}, "rms_norm", False),
        ({"columns": [24, 24]}, "rms_norm", True),
        ({"columns": [25, None]}, "rms_norm", False),
        ({"bytes": [None, 3 * 5 * 24 * 4]}, "rms_norm", True),
        ({"bytes": [None, 3 * 5 * 24 * 4 - 1]}, "rms_norm", False),
        ({"neighbour": [True]}, "rms_norm", True),
        ({"neighbour": [False]}, "rms_norm", False),
        ({"neighbour": [True]}, "rms_norm, view", True),
        ({"neighbour": [True]}, "rms_norm, alone", False),
        ({"neighbour": [True]}, "rms_norm, product", False),
    ],
)
def test_rules_ask_for_facts(says: Any, where: dict[str, Any], name: str, goes: bool) -> None:
    more = {
        "rms_norm, view": lambda x, z, w, b: fuseline.rms_norm(x, w).view(-1, 12).exp(),
        "rms_norm, alone": lambda x, z, w, b: fuseline.rms_norm(x, w),
        "rms_norm, product": lambda x, z, w, b: fuseline.rms_norm(x, w) @ z.mT,
    }
    says("rms_norm", rule("fwd", **where))
    run, left = compiled((CALLS | more)[name])
    results(run, inputs(), False)
    assert left == ([] if goes else ["_rms_norm"])


def test_a_result_that_was_saved_and_is_needed_elsewhere_keeps_the_operator(says: Any) -> None:
    says("rms_norm", *BOTH)

    def uses_rstd(x: Tensor, z: Tensor, w: Tensor, b: Tensor) -> Any:
        return torch.ops.fuseline._rms_norm_fwd(x, w, 1e-6)

    run, left = compiled(uses_rstd)
    results(run, inputs(), False)
    assert left == ["_rms_norm_fwd"]


@pytest.mark.parametrize("z_loss", [0.0, 0.5])
def test_a_formula_may_look_into_its_arguments(says: Any, z_loss: float) -> None:
    says("cross_entropy", *BOTH)
    target = torch.tensor([1, 0, 3])

    def loss(x: Tensor, z: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return fuseline.cross_entropy(x[:, 0], target, w.abs(), z_loss=z_loss)

    run, left = compiled(loss)
    came, ours = (results(f, inputs(), True) for f in (run, loss))
    assert left == []
    for c, o in zip(came, ours, strict=True):
        torch.testing.assert_close(c, o, rtol=2e-5, atol=2e-5)


class Marks(CustomGraphPass):
    """A user's pass, which notes that it ran, and what of ours it saw."""

    def __init__(self, mark: Any) -> None:
        self.mark = mark
        self.saw: list[bool] = []

    def __call__(self, graph: Any) -> None:
        self.saw.append(any(str(n.target).startswith("fuseline.") for n in graph.nodes))

    def uuid(self) -> Any:
        return self.mark


@pytest.mark.parametrize("name", ["joint_custom_pre_pass", "pre_grad_custom_pass"])
def test_a_users_pass_runs_first_and_nothing_global_changes(says: Any, name: str) -> None:
    config = torch._inductor.config
    says("rms_norm", *BOTH)
    mine, other = Marks("mine"), Marks("other")
    given = inputs()
    for theirs in (fuseline.compile_options({name: mine}), None):
        torch._dynamo.reset()
        with config.patch({name: other}):
            options = theirs or fuseline.compile_options({"max_autotune": False})
            torch.compile(CALLS["rms_norm"], options=options)(**given)
            assert getattr(config, name) is other
    assert mine.saw == other.saw == [True]
    assert options["max_autotune"] is False


def test_the_uuid_is_that_of_our_code_and_of_the_users_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def uuid(*theirs: Any) -> Any:
        options = {"joint_custom_pre_pass": list(theirs)} if theirs else None
        return fuseline.compile_options(options)["joint_custom_pre_pass"].uuid()

    assert fingerprint.fingerprint() in uuid()
    seen = [uuid(), uuid(Marks("a")), uuid(Marks("b")), uuid(Marks("a"), Marks("b"))]
    assert len(set(seen)) == 4
    assert uuid() == seen[0]
    assert uuid(Marks("a"), Marks(None)) is None
    assert uuid(lambda graph: None) is None
    monkeypatch.setattr("fuseline.inlining.graph_pass.fingerprint", lambda: "another")
    assert uuid() not in seen


def test_options_must_be_a_mapping() -> None:
    with pytest.raises(TypeError, match="options is a list, expected a mapping or None"):
        fuseline.compile_options(["max_autotune"])  # type: ignore[arg-type]


def test_shipped_tables_load_and_are_about_operators_with_a_formula() -> None:
    from fuseline.core.registration import contract

    files = sorted(rules.OPS.glob(f"*/{table.FOLDER}/*.json"))
    assert files
    for file in files:
        op = file.parts[-3]
        assert rules.load(file, table.FACTS, (table.IMPL,)), file
        assert contract.registered[op][0].gradients, op
