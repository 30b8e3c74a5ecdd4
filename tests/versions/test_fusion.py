"""Canaries by assert_fused: what it counts through Inductor's and Dynamo's private records.

Each has a function whose count is known from its text, and fails where a record that assert_fused
reads is empty, moved or counts something else; the names are in versions/lab.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from versions import lab, operators
from versions.use import Use

import fuseline
from fuselab import assert_fused
from fuselab.fusion.assertion import measure
from fuselab.fusion.record import EXTERN
from fuselab.fusion.scheduler import SPLIT
from fuseline.core.selection import tuned
from fuseline.inlining import table

X = torch.randn(512, 1024)


def use_of(name: str) -> Use:
    (use,) = (use for use in (*lab.USES, *operators.USES) if name in use.probes)
    return use


@contextmanager
def canary(*names: str) -> Iterator[None]:
    """Say on a failure which names the count rests on, and what to do."""
    try:
        yield
    except Exception as error:
        uses = {use_of(name).purpose: use_of(name).remedy for name in names}
        said = "\n".join(f"  for: {what}\n  to do: {remedy}" for what, remedy in uses.items())
        raise AssertionError(
            f"{', '.join(names)}: not what assert_fused takes it for in torch "
            f"{torch.__version__}\n{said}\n{error}"
        ) from error


@pytest.fixture(autouse=True)
def _one_compiler() -> Iterator[None]:
    with torch._inductor.config.patch(compile_threads=1):
        yield


def test_the_scheduler_says_what_it_fused() -> None:
    def chain(x: Tensor) -> Tensor:
        return (x.cos() * x).relu() + x

    with canary(
        "torch._inductor.graph.GraphLowering",
        "torch._inductor.output_code.CompiledFxGraph",
        "torch._inductor.virtualized.V",
    ):
        found = assert_fused(torch.compile(chain), X, kernels=1, traffic=1.0)
        assert found.kernels[0].read == found.kernels[0].written == X.nbytes


def test_the_scheduler_says_what_it_kept_apart_and_why() -> None:
    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(0), x.sum(1)

    with canary("torch._inductor.scheduler.Scheduler", "torch._inductor.scheduler.WhyNoFuse"):
        found = measure(torch.compile(two), X)
        assert len(found.kernels) == 2
        assert [u.reason for u in found.unfused] == ["no shared data"]


def test_a_librarys_kernel_is_told_from_a_compiled_one() -> None:
    def product(x: Tensor) -> Tensor:
        return (x @ x.mT).relu()

    with canary("torch._inductor.scheduler.ExternKernelSchedulerNode"):
        kinds = [k.maker for k in measure(torch.compile(product), X).kernels]
        assert len(kinds) == 2
        assert kinds.count(EXTERN) == 1


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="its outer loops differ where rows are vectors",
)
def test_what_the_code_generator_splits_is_counted_apart() -> None:
    def few_rows(x: Tensor) -> Tensor:
        return torch.softmax(x, 1)

    with canary("torch._inductor.codegen.cpp.OuterLoopFusedSchedulerNode"):
        found = measure(torch.compile(few_rows), torch.randn(2, 512 * 512))
        assert len(found.kernels) == 3
        assert SPLIT in {u.reason for u in found.unfused}


def test_dynamo_says_what_broke_and_what_compiled_again() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    factor = [0.5]

    def again(x: Tensor) -> Tensor:
        return x * factor[0]

    def changing(x: Tensor) -> Tensor:
        factor[0] += 1
        return compiled(x)

    compiled = torch.compile(again, dynamic=False)
    with canary(
        "torch._dynamo.utils.graph_break_reasons",
        "torch._dynamo.utils._compilation_metrics",
        "torch._dynamo.exc.SkipFrame",
    ):
        assert len(measure(torch.compile(broken), X).breaks) == 1
        assert measure(changing, X).recompiles


def test_eager_operators_and_those_inside_of_one_are_counted() -> None:
    @torch.library.custom_op("fuseline_canary::thrice", mutates_args=())
    def thrice(x: Tensor) -> Tensor:
        return x.cos() + x

    with canary("torch._library.custom_ops.OPDEFS", "torch._ops.OpOverload._op_dk"):
        assert_fused(lambda x: x.cos() + x, X, kernels=2, traffic=None)
        assert [k.name for k in measure(thrice, X).kernels] == ["cos", "add"]


@pytest.mark.parametrize("through", ["eager", "compiled"])
def test_our_operator_is_one_kernel(through: str) -> None:
    call: Any = fuseline.softmax
    if through == "compiled":
        call = torch.compile(lambda x: fuseline.softmax(x, impl="cpu"))
    with canary("torch._C._get_dispatch_mode"):
        assert_fused(call, X, kernels=1, traffic=1.0)


def test_the_formula_fuses_where_a_table_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv(tuned.FOLDER, str(tmp_path))
    file = tmp_path / "softmax" / table.FOLDER / "cpu.json"
    file.parent.mkdir(parents=True)
    rule = {"direction": "fwd", "where": {}, "impl": [table.IMPL], "evidence": {"run": "none"}}
    file.write_text(json.dumps({"machine": "cpu", "rules": [rule]}))
    table._rules.cache_clear()
    request.addfinalizer(table._rules.cache_clear)

    def block(x: Tensor) -> Tensor:
        return fuseline.softmax(x * 2)

    with canary(
        "torch._inductor.custom_graph_pass.CustomGraphPass",
        "torch._inductor.config.joint_custom_pre_pass",
    ):
        options = fuseline.compile_options()
        assert_fused(torch.compile(block, options=options), X, kernels=1, traffic=1.0)
