"""assert_fused counts what runs, says why it is not less, and is never satisfied by nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from torch._dynamo import utils
from torch._inductor.codegen.cpp import OuterLoopFusedSchedulerNode
from torch._inductor.output_code import CompiledFxGraph

import fuselab
import fuseline
from fuselab.fusion import assertion, device
from fuselab.fusion.assertion import assert_fused, measure
from fuselab.fusion.message import text
from fuselab.fusion.record import DEVICE, EAGER, Fusion, Kernel
from fuselab.fusion.scheduler import SPLIT
from fuselab.fusion.terms import Terms

pytest_plugins = ["pytester"]

SIZE = 256
NBYTES = SIZE * SIZE * 4
ROW = SIZE * 4


@pytest.fixture(autouse=True)
def _one_compiler() -> Iterator[None]:
    with torch._inductor.config.patch(compile_threads=1):
        yield


@pytest.fixture
def x() -> Tensor:
    return torch.randn(SIZE, SIZE)


def chain(x: Tensor) -> Tensor:
    y = torch.cos(x)
    x = x * y
    y = torch.max(x, y)
    return x + y


def two_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(0), x.sum(1)


def broken(x: Tensor) -> Tensor:
    y = x @ x.cos()
    torch._dynamo.graph_break()
    return y.sin()


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def names(found: Fusion) -> list[str]:
    return [kernel.name for kernel in found.kernels]


def complaint(fn: Callable[..., Any], *inputs: Any, **terms: Any) -> str:
    with pytest.raises(AssertionError) as failure:
        assert_fused(fn, *inputs, **terms)
    return str(failure.value)


# Eager


def test_an_eager_chain_is_a_kernel_an_operator(x: Tensor) -> None:
    said = complaint(chain, x, peak=1.0)
    assert "chain: kernels 4 (expected at most 1), traffic 5.5 (expected at most 1.05)" in said
    assert "peak 3 (expected at most 1)" in said
    assert f"{11 * NBYTES:,} bytes moved, {2 * NBYTES:,} at least" in said
    assert "3. maximum | eager" in said
    assert "no compiled graph ran" in said
    assert "test_fusion_plugin.py" in said
    assert names(assert_fused(chain, x, kernels=4, traffic=5.5, peak=3.0)) == [
        *("cos", "mul", "maximum", "add")
    ]


def test_a_fused_operator_is_one_kernel_at_the_least_traffic(x: Tensor) -> None:
    found = assert_fused(lambda x: fuseline.norm_chain(x), x, traffic=1.0, peak=1.0)
    assert names(found) == ["fuseline::norm_chain"]


def test_a_copy_before_an_operators_own_kernel_counts(x: Tensor) -> None:
    found = measure(lambda x: fuseline.norm_chain(x), x.t())
    assert names(found) == ["copy_", "fuseline::norm_chain"]
    assert found.traffic == 2.0


def test_composite_operators_count_as_their_parts(x: Tensor) -> None:
    with torch.inference_mode():  # where torch hands them out whole
        found = measure(lambda x: torch.nn.functional.linear(x, x).softmax(1), x)
    assert names(found) == ["mm", "_softmax"]


def test_a_custom_operator_in_python_does_not_hide_its_kernels(x: Tensor) -> None:
    @torch.library.custom_op("fusion_test::sum_of_two", mutates_args=())
    def sum_of_two(x: Tensor) -> Tensor:
        return x.cos() + x.sin()

    assert names(measure(sum_of_two, x)) == ["cos", "sin", "add"]


@pytest.mark.parametrize(
    ("fn", "read", "written", "least"),
    [
        (lambda x: x.add_(1), NBYTES, NBYTES, 2 * NBYTES),
        (lambda x: x.zero_(), 0, NBYTES, NBYTES),
        (lambda x: x + x, NBYTES, NBYTES, 2 * NBYTES),
        (lambda x: x + x[0], NBYTES, NBYTES, 2 * NBYTES),
        (lambda x: x[0].expand(SIZE, SIZE).cos(), ROW, NBYTES, ROW + NBYTES),
        (lambda x: torch.cos(x, out=torch.empty_like(x)), NBYTES, NBYTES, 2 * NBYTES),
        (lambda x: x[:, 0].cos().sum(0).view(1), 2 * ROW, ROW + 4, ROW + 4),
        (lambda x: torch.zeros(SIZE).copy_(x[0]), ROW, 2 * ROW, 2 * ROW),
        (lambda x: x.sum().item(), NBYTES + 4, 4, NBYTES),
    ],
    ids=[
        *("in place", "overwritten", "same twice", "a part again", "repeated", "out", "column"),
        *("made", "scalar"),
    ],
)
def test_bytes_of_operators(
    fn: Callable[..., Any], read: int, written: int, least: int, x: Tensor
) -> None:
    found = measure(fn, x)
    assert sum(kernel.read or 0 for kernel in found.kernels) == read
    assert sum(kernel.written or 0 for kernel in found.kernels) == written
    assert found.least == least


def test_views_and_allocations_are_no_kernels_and_prove_nothing(x: Tensor) -> None:
    def views(x: Tensor) -> Tensor:
        torch.empty_like(x).resize_(3)
        return x.t().view(-1, SIZE, 1).detach()

    assert "kernels none was seen (expected at least 1)" in complaint(views, x)
    assert "kernels none was seen" in complaint(views, x, kernels=None)
    assert_fused(views, x, kernels=0)


# Compiled


def test_a_compiled_chain_is_one_kernel(x: Tensor) -> None:
    found = assert_fused(torch.compile(chain), x, traffic=1.0, peak=1.0)
    assert (names(found), found.graphs) == (["cos, mul, maximum, add"], 1)
    assert (found.kernels[0].read, found.kernels[0].written) == (NBYTES, NBYTES)


def test_sums_over_two_dimensions_fail_with_the_schedulers_reason(x: Tensor) -> None:
    compiled = torch.compile(two_sums)
    compiled(x)  # which leaves the graph in all of the compiler's caches
    said = complaint(compiled, x)
    assert "two_sums: kernels 2 (expected at most 1), traffic 1.992" in said
    assert f"{2 * (NBYTES + ROW):,} bytes moved, {NBYTES + 2 * ROW:,} at least" in said
    assert "1. sum with 2. sum: no shared data" in said
    assert "test_fusion_plugin.py" in said
    assert "return x.sum(0), x.sum(1)" in said
    assert complaint(compiled, x) == said


def test_an_extern_kernel_and_a_graph_break_are_named(x: Tensor) -> None:
    said = complaint(torch.compile(broken), x)
    assert "kernels 3 (expected at most 1)" in said
    assert "1. cos | compiled" in said
    assert f"2. mm | extern | reads {2 * NBYTES:,} and writes {NBYTES:,} bytes" in said
    assert "3. sin | compiled" in said
    assert "2. mm: called as it is" in said
    assert "Call to `torch._dynamo.graph_break()`" in said
    assert "in broken: torch._dynamo.graph_break()" in said


def test_loops_that_the_code_generator_splits_are_kernels(x: Tensor) -> None:
    check = "check_outer_fusion_loop_level_attr"
    with patch.object(OuterLoopFusedSchedulerNode, check, lambda *_: False):
        found = measure(torch.compile(softmax), x, peak=True)
    assert names(found) == ["_softmax"] * 3
    assert {pair.reason for pair in found.unfused} == {SPLIT}
    assert found.traffic is not None
    assert found.traffic > 2.5
    assert found.peak_ratio is not None
    assert found.peak_ratio > 2.0  # the allocator has seen the buffer between them, too


def test_a_compiled_change_of_an_input_is_least_traffic() -> None:
    def step(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    found = assert_fused(torch.compile(step), torch.randn(SIZE, SIZE))
    assert (found.least, found.traffic) == (3 * NBYTES, 1.0)


def test_bytes_of_other_sizes_than_compiled_ones_are_not_measured() -> None:
    compiled = torch.compile(torch.cos, dynamic=True)

    def sweep(*inputs: Tensor) -> list[Tensor]:
        return [compiled(x) for x in inputs]

    inputs = [torch.randn(n, 8) for n in (4, 5)]
    assert "traffic was not measured: a graph ran at other sizes" in complaint(
        sweep, *inputs, kernels=2
    )
    assert_fused(sweep, *inputs, kernels=2, traffic=None, recompiles=0)


# Dynamo, by a backend that generates no code


@torch.compiler.disable
def disabled(x: Tensor) -> Tensor:
    return x + 1


def calls_disabled(x: Tensor) -> Tensor:
    return disabled(x.cos()).sin()


def data_dependent(x: Tensor) -> Tensor:
    return x.cos() if x.sum() > 0 else x.sin()


def in_a_loop(x: Tensor) -> Tensor:
    for _ in range(2):
        x = x.cos()
        torch._dynamo.graph_break()
    return x


def in_a_try(x: Tensor) -> Tensor:
    try:
        torch._dynamo.graph_break()
        return x.cos()
    except ValueError:
        return x


@pytest.mark.parametrize("fn", [calls_disabled, data_dependent, in_a_loop, in_a_try])
def test_every_way_out_of_the_graph_is_a_break(fn: Callable[..., Any], x: Tensor) -> None:
    compiled = torch.compile(fn, backend="eager")
    said = complaint(compiled, x, kernels=None, traffic=None)
    assert "breaks 1 (expected at most 0)" in said
    assert fn.__name__ in said.partition("graph breaks:")[2]
    assert_fused(compiled, x, kernels=None, traffic=None, breaks=1)


def test_recompilations_are_counted_with_their_causes() -> None:
    inputs = [torch.randn(n, 8) for n in (4, 5, 6)]
    for dynamic, expected in ((None, 1), (False, 2)):
        compiled = torch.compile(torch.cos, backend="eager", dynamic=dynamic)

        def sweep(*inputs: Tensor, fn: Callable[..., Any] = compiled) -> list[Tensor]:
            return [fn(x) for x in inputs]

        found = measure(sweep, *inputs)
        assert len(found.recompiles) == expected
        assert "size mismatch at index 0. expected 4, actual 5" in found.recompiles[0]
    said = complaint(sweep, *inputs, kernels=3)
    assert "recompiles 2 (expected at most 1)" in said
    assert "expected 5, actual 6" in said


def test_a_function_that_was_not_compiled_after_all_is_a_break(x: Tensor) -> None:
    compiled = torch.compile(torch.cos)
    with torch._dynamo.config.patch(disable=True):
        assert "torch.compile made no graph" in complaint(compiled, x)


def test_nothing_is_left_behind(x: Tensor) -> None:
    def fails(x: Tensor) -> Tensor:
        torch.compile(softmax, backend="eager")(x)
        raise KeyError("mine")

    before = CompiledFxGraph.__call__, CompiledFxGraph.__init__, len(utils._compilation_metrics)
    with pytest.raises(KeyError, match="mine"):
        assert_fused(fails, x)
    after = CompiledFxGraph.__call__, CompiledFxGraph.__init__, len(utils._compilation_metrics)
    assert before == after
    assert not torch._inductor.config.force_disable_caches


# Terms, and a device whose kernels are told


@pytest.mark.parametrize(
    "terms",
    [{"kernels": -1}, {"kernels": 1.5}, {"breaks": True}, {"traffic": "1"}, {"peak": float("nan")}],
)
def test_bad_terms_are_named_before_anything_runs(terms: dict[str, Any]) -> None:
    (name,) = terms
    with pytest.raises(ValueError, match=f"^{name}: got .*, expected a (count|ratio) or None"):
        assert_fused(lambda: pytest.fail("was called"), **terms)


def test_what_is_no_function_is_refused(x: Tensor) -> None:
    with pytest.raises(TypeError, match=r"^fn: got Tensor, expected a function"):
        assert_fused(x)


def test_kernels_of_a_device_are_those_it_ran(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [Kernel("vectorized_cos", DEVICE)]
    monkeypatch.setattr(assertion, "_device", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(device, "kernels", lambda call: (call(), tuple(seen))[1])
    found = assert_fused(torch.cos, x)
    assert (names(found), found.traffic) == (["vectorized_cos"], 1.0)
    seen.append(Kernel("hidden", DEVICE))
    said = complaint(torch.cos, x, kernels=2)
    assert "traffic not measured (expected at most 1.05)" in said
    assert "the device ran 2 kernels" in said
    assert "traffic=None leaves the term out" in said
    assert "2. hidden | device" in said
    assert_fused(torch.cos, x, kernels=2, traffic=None)


def test_long_lists_are_cut_off() -> None:
    many = tuple(Kernel(f"k{i}", EAGER, 4, 4) for i in range(100))
    found = Fusion("f", many, many, 800, 8, "", (), 0, (), (), None, 4)
    said = text(found, Terms().verdicts(found))
    assert "... and 60 more" in said
    assert "k99" not in said
    assert not any(v.holds for v in Terms(peak=1).verdicts(replace(found, moved=None))[:2])


# The plugin


def test_pytest_starts_without_torch() -> None:
    code = "import fuselab.fusion.plugin, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_lab_has_it_too() -> None:
    assert fuselab.assert_fused is assert_fused


def test_a_marker_sets_the_terms_of_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch

        def cosines(x):
            return x.cos().cos()

        X = torch.ones(8)

        @pytest.mark.fused(kernels=2, traffic=2)
        def test_marked(assert_fused):
            assert_fused(cosines, X)

        def test_not_marked(assert_fused):
            assert_fused(cosines, X)

        @pytest.mark.fused(kernels=1, traffic=2)
        class TestClass:
            def test_of_the_class(self, assert_fused):
                assert_fused(cosines, X)

            @pytest.mark.fused(kernels=2)
            def test_closest_first(self, assert_fused):
                assert_fused(cosines, X)

            def test_own_first(self, assert_fused):
                assert_fused(cosines, X, kernels=2)

        @pytest.mark.fused(kernels=2)
        def test_never_called(assert_fused):
            pass

        @pytest.mark.fused(kernels=2)
        def test_without_the_fixture():
            pass

        @pytest.mark.fused(2)
        def test_not_by_name(assert_fused):
            assert_fused(cosines, X)
        """
    )
    result = pytester.runpytest_inprocess("--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=4, errors=1)
    result.stdout.fnmatch_lines_random(
        [
            "*cosines: kernels 2 (expected at most 1), traffic 2 (expected at most 1.05)*",
            "*cosines: kernels 2 (expected at most 1)",
            "*marked fused, but the test never called the fixture assert_fused*",
            "*fused: got (2,), expected terms by name: kernels=1, *",
        ]
    )


# A GPU


@pytest.mark.gpu
def test_a_gpu_is_measured() -> None:
    x = torch.randn(1 << 20, device="cuda")
    assert_fused(torch.compile(chain), x, peak=1.0)
    found = measure(chain, x)
    assert (len(found.kernels), found.traffic) == (4, 5.5)
    assert {kernel.maker for kernel in found.kernels} == {DEVICE}


@pytest.mark.gpu
def test_a_kernel_past_the_dispatcher_is_seen_on_a_gpu() -> None:
    from fusion_gpu_kernel import twice

    x = torch.randn(1 << 20, device="cuda")
    assert "the device ran 1 kernels and torch's operators" in complaint(twice, x)
    assert_fused(twice, x, traffic=None, peak=1.0)


def test_a_failure_prints_its_message_and_no_log_of_torch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        from fuselab import assert_fused

        def test_two_kernels():
            assert_fused(torch.compile(lambda x: (x.sum(0), x.sum(1))), torch.randn(33, 65))
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*kernels 2 (expected at most 1)*"])
    result.stdout.no_fnmatch_line("*torch.__trace*")
