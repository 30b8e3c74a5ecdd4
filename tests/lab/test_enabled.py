"""The implementation `enabled`: torch's own function on our kernels, and during its calls alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Lab
from torch import Tensor

import fuseline
from fuselab.commands import select
from fuselab.model import Group, Measurement, Status
from fuselab.planning.plan import Filters
from fuselab.records.metrics import records
from fuselab.worker import child, group
from fuselab.worker.implementations import baselines
from fuselab.worker.implementations.enabled import ENABLED, Takeover
from fuselab.worker.operators import specs
from fuselab.worker.protocol import Fatal
from fuseline.core import native
from fuseline.core.specs.spec import Direction, Implementation, OpSpec

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)
DIRECTIONS: tuple[Direction, ...] = ("fwd", "bwd")
# What serves a call of the operator's function on a CPU: forward and backward.
SERVED = {
    "softmax": ("_softmax", "_softmax_backward_data"),
    "log_softmax": ("_log_softmax", "_log_softmax_backward_data"),
    "rms_norm": ("_fused_rms_norm", "_fused_rms_norm_backward"),
    # These are left to ATen there.
    "layer_norm": (),
    "bias_gelu": (),
}


def on() -> list[tuple[str, str]]:
    return [(s.op, s.device) for s in fuseline.status().served if s.enabled]


def measure(
    spec: OpSpec, direction: Direction, *impls: str, case: str = "wild:5x61"
) -> dict[str, Measurement]:
    found: list[Measurement] = []

    def emit(kind: str, *event: Any) -> None:
        if kind == "result":
            found.extend(event)

    where = (case, "float32", direction, "contiguous", "cpu")
    group.run(Group(spec.name, *where, impls, precision="quick"), frozenset(), emit, spec)
    return {measurement.cell.impl: measurement for measurement in found}


@pytest.mark.parametrize("op", SERVED)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_it_is_right_and_every_timed_call_is_served(op: str, direction: Direction) -> None:
    cell = measure(specs.load()[op], direction, ENABLED)[ENABLED]
    assert cell.status in (Status.OK, Status.NOISY), cell.reason
    names = SERVED[op] if direction == "bwd" else SERVED[op][:1]
    timed = cell.proof.timed_calls
    assert cell.proof.served == dict.fromkeys(names, timed)
    (record,) = records([cell])
    assert record["role"] == "baseline"
    assert record["served"] == ("; ".join(f"{timed} of {timed} {n}" for n in names) or "none")
    assert on() == []


class Watched(torch.autograd.Function):
    """Passes on what comes, and notes at each forward and backward what is taken over."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seen: list[int]) -> Tensor:
        ctx.seen = seen
        seen.append(len(on()))
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor, None]:
        ctx.seen.append(len(on()))
        return dy[0], None


def watched(seen: list[int]) -> Callable[..., Tensor]:
    return lambda x, dim=-1: torch.softmax(Watched.apply(x, seen), dim)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_it_is_enabled_during_its_own_calls_alone(direction: Direction) -> None:
    eagers: list[int] = []
    natives: list[int] = []
    implementations = (
        Implementation("eager", watched(eagers), role="eager"),
        Implementation("native", watched(natives), role="native"),
    )
    spec = replace(specs.load()["softmax"], implementations=implementations)
    found = measure(spec, direction, "eager", ENABLED)
    assert all(cell.status in (Status.OK, Status.NOISY) for cell in found.values()), found
    # The oracle, the audit and the eager yardstick run between its calls.
    assert set(eagers) == {0}
    assert set(natives) == {sum(map(bool, SERVED.values()))}
    assert found["eager"].proof.served is None


@pytest.mark.parametrize("grad", [False, True])
def test_it_serves_in_both_grad_modes(grad: bool) -> None:
    x = torch.randn(3, 61, requires_grad=True)
    takeover = Takeover()
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            with takeover:
                y = torch.softmax(x, -1)
            assert takeover.served["_softmax"] == 1
    assert y.requires_grad == grad
    with pytest.raises(KeyError), takeover:
        raise KeyError
    assert on() == []


def test_an_implementation_that_leaves_it_on_ends_the_worker() -> None:
    def leaves(x: Tensor, dim: int = -1) -> Tensor:
        fuseline.enable("softmax")
        return torch.softmax(x, dim)

    own = Implementation("leaves", leaves)
    spec = replace(specs.load()["softmax"], implementations=(own,))
    try:
        with pytest.raises(Fatal, match="operators taken over"):
            measure(spec, "fwd", "leaves")
    finally:
        fuseline.disable()


def test_it_calls_torchs_own_function_where_the_operator_has_one() -> None:
    loaded = specs.load()
    for op, role in (("softmax", "eager"), ("rms_norm", "native"), ("layer_norm", "native")):
        impl = loaded[op].implementation(role)
        assert baselines.make(loaded[op], ENABLED, "cpu") is impl.fn


def test_it_runs_only_if_it_is_named(lab_here: Lab) -> None:
    found = select.specs_of(["softmax"])
    assert all(ENABLED not in g.impls for g in select.groups(found, Filters()))
    (named, *_) = select.groups(found, Filters(impls=("eager", ENABLED)))
    assert named.impls == ("eager", ENABLED, "ceiling")
    (listed,) = json.loads(lab_here("list", "softmax", "--json").stdout)
    assert ENABLED not in listed["impls"]
    assert listed["if_named"] == ["aten", ENABLED]
    assert ENABLED in lab_here("list", "softmax").stdout


def test_no_binary_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = native.Native("missing", "no libfuseline.so", "rebuild it")
    monkeypatch.setattr(native, "status", lambda: missing)
    why = baselines.unavailable(specs.load()["softmax"], ENABLED, "cpu")
    assert why is not None
    assert "rebuild it" in why
    assert baselines.unavailable(specs.load()["softmax"], "eager", "cpu") is None


def test_counting_processes_have_it_on_for_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(child.MODES, "look", lambda task, index: {"on": len(on())})
    tasks, answers = tmp_path / "tasks", tmp_path / "answers"
    tasks.write_text(json.dumps([{"impl": ENABLED}, {"impl": "eager"}]))
    child.main("look", str(tasks), str(answers))
    first, second = json.loads(answers.read_text())
    assert first["on"] > 0
    assert second == {"on": 0}


def test_a_process_of_its_own(lab: Lab, tmp_path: Path) -> None:
    chosen = ("--case", "wild:300x1001", "--dtype", "fp32", "--direction", "bwd")
    done = lab(
        *("run", "softmax", *chosen, "--impl", ENABLED, "--isolate", "--precision", "quick"),
        *("--device", "cpu", "--out", str(tmp_path), "--json"),
    )
    (cell,) = (c for c in json.loads(done.stdout)["cells"] if c["impl"] == ENABLED)
    assert cell["status"] in ("ok", "noisy"), cell["reason"]
