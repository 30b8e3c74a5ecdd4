"""The worker's parts, in this process: inputs, baselines, ceilings, and one whole group."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
import torch
import toy_ops
from torch import Tensor

from fuselab.model import Group, Measurement, Proof, Status
from fuselab.worker import footprint, group, protocol
from fuselab.worker.checks import audit, probe
from fuselab.worker.device.ceiling import MIXES, Streams, mix_of
from fuselab.worker.implementations import baselines
from fuselab.worker.implementations.baselines import CompileWatch, Unsupported
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.operators import specs
from fuselab.worker.operators.specs import SpecError
from fuselab.worker.tensors import contents, inputs, problem
from fuselab.worker.tensors.problem import Problem
from fuseline import table
from fuseline.core import native
from fuseline.core.specs.spec import Cost, Direction, Implementation, Inputs
from fuseline.testing.oracle import accuracy

CPU = torch.device("cpu")
TIMED = ("timing", "checks and new contents")


def swish(direction: str, *impls: str, source: str) -> Group:
    return Group("swish", "small", "float32", direction, "contiguous", "cpu", impls, source)


def silent(*event: Any) -> None:
    return None


def run(wanted: Group) -> tuple[dict[str, Measurement], list[tuple[Any, ...]]]:
    events: list[tuple[Any, ...]] = []
    group.run(wanted, frozenset(), lambda *event: events.append(event))
    return {e[1].cell.impl: e[1] for e in events if e[0] == "result"}, events


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_group_gives_every_cell_its_numbers_with_proof(direction: str, toy: str) -> None:
    names = ("eager", "right", "torchscript", "ceiling")
    found, events = run(swish(direction, *names, source=toy))
    assert tuple(found) == names
    for name, m in found.items():
        assert m.status in (Status.OK, Status.NOISY), m.reason
        assert len(m.samples_us) >= 5
        assert m.host_us is not None
        assert m.proof.sets > 1
        assert m.proof.launches >= 1
        if name != "ceiling":
            assert m.accuracy is not None
            assert m.proof.repeatable
            assert m.peak_bytes is not None
    assert found["right"].proof.role == "ours"
    assert found["torchscript"].proof.role == "baseline"
    assert found["ceiling"].proof.mix == ("1R1W" if direction == "fwd" else "2R1W")
    blocks = groupby(e[1] for e in events if e[0] == "start" and e[2] in TIMED)
    timed = [name for name, _ in blocks]
    assert timed[:4] == list(names)
    assert timed[4:8] == [*names[1:], names[0]]


def test_bytes_of_a_group_are_counted_once(toy: str) -> None:
    x = 64 * 33 * 4
    forward, _ = run(swish("fwd", "right", source=toy))
    assert forward["right"].ideal_bytes == 2 * x
    # Input, result, and silu's result as workspace; a scalar takes a few bytes more.
    assert 3 * x <= forward["right"].buffer_bytes < 3 * x + 64
    backward, _ = run(swish("bwd", "eager", "right", source=toy))
    # Both: x and dy, dx and one temporary. Eager saves the sigmoid, and has two temporaries.
    assert backward["right"].buffer_bytes == 4 * x
    assert backward["eager"].buffer_bytes == 6 * x
    assert backward["right"].ideal_bytes == 3 * x


def test_the_peak_counts_what_is_alive_at_once() -> None:
    def call() -> Tensor:
        a = torch.ones(1 << 16)
        b = a + 1
        del a
        return b * 2

    peak, operators = footprint.cpu_profile(call)
    assert peak == pytest.approx(2 * (4 << 16), rel=0.01)
    assert operators["aten::add"] == operators["aten::mul"] == 1


def test_inputs_depend_on_the_group_and_the_set_alone(toy: str) -> None:
    first = problem.build(swish("fwd", "right", source=toy), silent)
    again = problem.build(swish("fwd", "eager", source=toy), silent)
    first.grow(3)
    assert torch.equal(first.sets[0].inputs["x"], again.sets[0].inputs["x"])
    assert not torch.equal(first.sets[0].inputs["x"], first.sets[1].inputs["x"])


def test_an_overwritten_input_is_named_and_mended(toy: str) -> None:
    given = problem.build(swish("bwd", "right", source=toy), silent)
    before = given.first.inputs["x"].clone()
    assert given.overwritten() == ()
    given.first.inputs["x"][3, 4] = torch.nan
    assert given.first.dys is not None
    given.first.dys[0].neg_()
    assert given.overwritten() == ("x", "dy0")
    assert torch.equal(given.first.inputs["x"], before)
    assert given.overwritten() == ()


def test_no_set_comes_twice_in_a_pass_and_their_order_changes(toy: str) -> None:
    given = problem.build(swish("fwd", "right", source=toy), silent)
    given.grow(6)
    orders = set()
    for _ in range(20):
        given.renew(6, shuffle=True)
        order = given.order(6, 6)
        assert sorted(order) == list(range(6))
        given.renew(6, shuffle=False)
        assert given.order(6, 6) == order
        seen = [call() for call in given.calls(lambda x, scale: x, 6, 6)]
        assert all(seen[k] is given.sets[i].inputs["x"] for k, i in enumerate(order))
        orders.add(tuple(order))
    assert len(orders) > 10


@pytest.mark.parametrize("sets", [1, 4])
def test_addresses_stay_and_contents_do_not(toy: str, sets: int) -> None:
    given = problem.build(swish("bwd", "right", source=toy), silent)
    given.grow(sets)
    addresses = [s.inputs["x"].data_ptr() for s in given.sets]
    seen = [s.inputs["x"].clone() for s in given.sets]
    steps = set()
    for _ in range(12):
        before = [s.inputs["x"]._version for s in given.sets]
        given.refresh()
        assert [s.inputs["x"].data_ptr() for s in given.sets] == addresses
        for held, version in zip(given.sets, before, strict=True):
            assert not any(torch.equal(held.inputs["x"], old) for old in seen)
            seen.append(held.inputs["x"].clone())
            steps.add(held.inputs["x"]._version - version)
    assert steps == {0, 1}
    given.restore()
    assert given.overwritten() == ()


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("refreshed", [False, True])
def test_what_a_call_finds_changes_a_little_and_without_a_new_version(
    toy: str, direction: str, refreshed: bool
) -> None:
    given = problem.build(swish(direction, "right", source=toy), silent)
    given.grow(3)
    if refreshed:
        given.refresh()
    for _ in range(5):
        tensors = [s.tensors for s in given.sets]
        before = [{n: (t.clone(), t._version) for n, t in held.items()} for held in tensors]
        given.renew(3, shuffle=True)
        given.renew_gradients(3)
        for held, old in zip(tensors, before, strict=True):
            for name, tensor in held.items():
                changed = int((tensor != old[name][0]).sum())
                assert 0 < changed <= max(2, tensor.numel() // contents.PART + tensor.shape[-1])
                assert tensor._version == old[name][1]
    assert given.written() == ()


def test_who_writes_to_an_input_while_timed_is_named(toy: str) -> None:
    given = problem.build(swish("bwd", "right", source=toy), silent)
    given.grow(3)
    given.renew(3, shuffle=True)
    for held in given.sets:
        held.inputs["x"].neg_()
    assert given.written() == ("x",)


def test_inputs_without_floating_tensors_are_drawn_anew() -> None:
    draws = iter(range(100, 200))

    def make(*_: Any) -> dict[str, Any]:
        return {"x": torch.full((3, 5), next(draws))}

    spec = replace(toy_ops.SWISH, make_inputs=make, cost=None, differentiable=())
    given = problem.build(swish("fwd", "right", source=""), silent, spec)
    held = given.sets[0].inputs["x"]
    before, version = held.clone(), held._version
    given.renew(1, shuffle=True)
    assert not torch.equal(held, before)
    assert held._version == version


def test_results_of_every_block_are_checked(toy: str) -> None:
    found, _ = run(replace(swish("fwd", "right", "eager", source=toy), precision="quick"))
    for m in found.values():
        assert m.proof.checked_calls >= m.proof.rounds + 1  # the hot block's
        assert m.hot_us
        assert m.proof.repeatable


def test_what_auto_took_is_part_of_the_proof() -> None:
    spec = table.load()["conv_bn"]
    case = next(case for case in spec.cases if "training" in case.name and "check" in case.suites)
    names = ("auto", "eager")
    group_ = Group("conv_bn", case.name, "float32", "bwd", "contiguous", "cpu", names, "")
    found, _ = run(replace(group_, precision="quick"))
    assert found["auto"].proof.chosen.startswith("aten, the first in order that can")
    assert found["eager"].proof.chosen is None


def test_of_expensive_separate_problems_timed_calls_are_checked_in_part() -> None:
    """Of 64 rows 16: a wrong one is found in a quarter of the calls, a right one in none."""

    def cost(inputs: Inputs, direction: Direction) -> Cost:
        return Cost(1, 1, flops=4 * int(audit.FLOPS))

    spec = replace(toy_ops.SWISH, separate=lambda inputs: ("x",), cost=cost)
    for direction in ("fwd", "bwd"):
        given = problem.build(swish(direction, "right", source=""), silent, spec)

        def ended(output: Any, given: Problem = given) -> bool:
            trial = Trial(given.group.cell("right"), lambda count, sets: [], given.cost)
            audit.Audit(given, yardstick=True).verify(trial, 1, 1, {0: output})
            return not trial.alive

        output = given.call_on(toy_ops.right, given.first)()
        assert not any(ended(output) for _ in range(8))
        accuracy.as_tuple(output)[0][5] += 1
        assert 0 < sum(ended(output) for _ in range(64)) < 64


def test_a_backward_needs_no_more_than_gradients(toy: str) -> None:
    for direction in ("fwd", "bwd"):
        given = problem.build(swish(direction, "right", source=toy), silent)
        x = given.first.inputs["x"].nbytes
        assert given.least_bytes == (given.cost.bytes if direction == "fwd" else 2 * x)


def test_a_view_that_repeats_elements_takes_new_contents() -> None:
    base, source = torch.zeros(1, 3), torch.arange(3.0).expand(4, 3)
    contents.overwrite(base.expand(4, 3), source)
    assert torch.equal(base[0], torch.arange(3.0))


@pytest.mark.parametrize(
    ("set_bytes", "calls", "expected"), [(1 << 10, 12, 12), (1 << 10, 500, 20), (1 << 40, 8, 1)]
)
def test_rotation_is_bounded_by_calls_and_memory(set_bytes: int, calls: int, expected: int) -> None:
    assert inputs.how_many(set_bytes, CPU, calls) == expected


def test_seeds_differ_by_key_and_index() -> None:
    assert inputs.seed("a", 0) == inputs.seed("a", 0)
    assert len({inputs.seed("a", 0), inputs.seed("a", 1), inputs.seed("b", 0)}) == 3


def test_what_torchscript_refuses_is_unsupported_with_its_reason() -> None:
    def eager(x: Tensor, scale: float, **more: int) -> Tensor:
        return x * scale

    spec = replace(toy_ops.SWISH, implementations=(Implementation("eager", eager, role="eager"),))
    with pytest.raises(Unsupported, match=r"torch\.jit\.script refuses: \w+"):
        baselines.make(spec, "torchscript", "cpu")


def test_a_baseline_without_eager_or_where_eager_cannot_run_is_unsupported() -> None:
    none = replace(toy_ops.SWISH, implementations=(Implementation("right", toy_ops.right),))
    assert baselines.names(none) == ("right",)
    with pytest.raises(Unsupported, match="no eager implementation"):
        baselines.make(none, "compile", "cpu")
    absent = replace(toy_ops.SWISH.implementations[0], unavailable=lambda d: f"not on {d}")
    with pytest.raises(Unsupported, match="not on cpu"):
        baselines.make(replace(none, implementations=(absent,)), "compile", "cpu")


def test_the_watch_counts_graphs_and_recompiles() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager", dynamic=False)
    first, timed = CompileWatch(), CompileWatch()
    for _ in range(2):
        with first:
            compiled(torch.ones(3))
    with timed:
        compiled(torch.ones(3))
    wanted = Proof(copies=2, graphs=1, breaks=0, recompiles=0)
    assert baselines.compile_proof(Proof(copies=2), first, timed) == wanted
    with timed:
        compiled(torch.ones(4))
    proof = baselines.compile_proof(Proof(), first, timed)
    assert baselines.compile_fault(proof) == "torch.compile compiled 1 times while it was timed"


def test_the_watch_sees_breaks_and_functions_that_are_not_compiled() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y + 1

    torch._dynamo.reset()
    watch = CompileWatch()
    with watch:
        torch.compile(broken, backend="eager")(torch.ones(3))
    assert "broke the graph" in baselines.compile_fault(
        baselines.compile_proof(Proof(), watch, CompileWatch())
    )
    nothing = CompileWatch()
    with nothing, torch.compiler.set_stance("force_eager"):
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    proof = baselines.compile_proof(Proof(), nothing, CompileWatch())
    assert "no graph" in baselines.compile_fault(proof)


@pytest.mark.parametrize(
    ("read", "written", "mix"),
    [
        (1, 1, "1R1W"),
        (2, 1, "2R1W"),
        (3, 1, "3R1W"),
        (9, 1, "1R0W"),
        (1, 0, "1R0W"),
        (1, 9, "1R1W"),
    ],
)
def test_the_mix_of_a_case_is_the_nearest(read: int, written: int, mix: str) -> None:
    assert mix_of(Cost(read * 100, written * 100)) == mix


def moved_what_they_told(device: torch.device, own: bool) -> None:
    memory: list[torch.Tensor] = []
    for mix, (reads, writes) in MIXES.items():
        moved = Streams(mix, 960_000, device, memory, own)
        rows = reads + writes
        assert moved.cost == Cost(
            960_000 // rows * reads, 960_000 // rows * writes, 240_000 // rows * (reads - 1)
        )
        for call in moved.calls(2, 2):
            call()
        assert len(memory) == 2
        if not writes:
            continue
        for *sources, out in (held.view(rows, -1)[:, : 240_000 // rows] for held in memory):
            a, *others = sources
            wanted = a + (others[0] * others[-1] if mix == "3R1W" and not own else sum(others))
            torch.testing.assert_close(out, wanted)
            assert out.abs().sum() > 0


def test_the_streams_move_the_bytes_they_are_told() -> None:
    moved_what_they_told(CPU, own=False)


def test_long_streams_are_whole_pieces_of_what_the_driver_copies_fast() -> None:
    assert Streams("1R1W", (8 << 20) + 2048, CPU).cost.bytes == 8 << 20
    assert Streams("2R1W", 100_000_000, CPU).cost.bytes % 4096 == 0
    assert Streams("1R1W", 4098, CPU).cost.bytes == 4096


@pytest.mark.gpu
@pytest.mark.parametrize("own", [False, True])
def test_the_streams_of_a_gpu_move_the_bytes_they_are_told(own: bool) -> None:
    assert native.status().why_not("cuda") is None
    moved_what_they_told(torch.device("cuda:0"), own)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_set_that_is_alone_serves_whatever_it_holds(direction: str, toy: str) -> None:
    given = problem.build(swish(direction, "eager", source=toy), lambda *event: None)
    given.refresh()
    with torch.set_grad_enabled(direction == "bwd"):
        (call,) = given.calls(toy_ops.eager, 1, 1)
        assert given.misshapen(given.named(call())) == ""
        assert footprint.given_bytes(given, toy_ops.eager) > 0


def test_two_specs_of_one_name_are_refused(tmp_path: Any, toy: str) -> None:
    file = tmp_path / "twice_ops.py"
    file.write_text("from toy_ops import SWISH, right, spec\nSECOND = spec('swish', right)\n")
    with pytest.raises(SpecError, match="two OpSpecs are named 'swish'"):
        specs.load(str(file))
    assert list(specs.load(toy)) == ["swish"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no memory\nHint: buy some", "RuntimeError: no memory"),
        ("", "RuntimeError"),
        (
            "An exception occurred in a subprocess:\n\nName=k\nTraceback (most recent call last):\n"
            "  File x, line 1\nRuntimeError: PassManager::run failed\n\nSet TORCHDYNAMO_VERBOSE=1",
            "RuntimeError: An exception occurred in a subprocess: RuntimeError: PassManager::run "
            "failed",
        ),
    ],
)
def test_an_error_is_one_line_with_its_cause(text: str, told: str) -> None:
    assert protocol.describe(RuntimeError(text)) == told


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_a_probe_compares_results_of_any_dtype(device: str, dtype: torch.dtype) -> None:
    result = torch.tensor([1.0, float("nan"), -2.0], device=device).to(dtype)
    other = torch.tensor([1.0, float("nan"), -4.0], device=device).to(dtype)
    assert probe._same(result, result.clone())
    assert not probe._same(result, other)


@pytest.mark.gpu
def test_a_group_on_a_gpu_is_cold_kernel_time(toy: str) -> None:
    wanted = replace(
        swish("bwd", "eager", "right", "compile", "ceiling", source=toy),
        device="cuda:0",
        precision="quick",
    )
    found, _ = run(wanted)
    for m in found.values():
        assert m.status is Status.OK, m.reason
        assert m.timer == "cupti"
        assert m.proof.cold
        assert m.proof.kernels
        assert m.host_us is not None
    assert found["compile"].proof.graphs >= 1
    assert found["eager"].proof.launches > found["compile"].proof.launches
