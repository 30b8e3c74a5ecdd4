"""Products and what follows them: what no other operator promises."""

from __future__ import annotations

import pytest
import torch
from ops.products import OPS, arguments, error, oracle, results
from torch import Tensor

import fuseline


def integers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randint(-3, 4, shape).to(dtype)


@pytest.mark.parametrize("impl", ["auto", "aten", "eager"])
@pytest.mark.parametrize("op", OPS[:3])
def test_products_of_small_integers_are_exact(op: str, impl: str) -> None:
    a, b, bias = integers(2, 7, 65), integers(65, 33), integers(33)
    args, dy = arguments(op, a, b, bias), integers(2, 7, 33)
    for found, wanted in zip(results(op, args, dy, impl=impl), oracle(op, args, dy), strict=True):
        assert torch.equal(found.double(), wanted)


@pytest.mark.parametrize("impl", ["auto", "aten", "onednn"])
def test_gelu_of_more_dimensions_than_onednn_takes(impl: str) -> None:
    a, b, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    deep = a.view(*(1,) * 11, 3, 4)
    found = [
        results("matmul_add_gelu", [t, b, bias, "none"], dy, impl=impl)
        for t, dy in ((a, torch.ones(3, 5)), (deep, torch.ones(*(1,) * 11, 3, 5)))
    ]
    for flat, got in zip(*found, strict=True):
        torch.testing.assert_close(got.view(flat.shape), flat)


@pytest.mark.parametrize("op", OPS)
def test_the_gradient_of_a_linear_layers_weight_lies_as_the_weight(op: str) -> None:
    weight = torch.randn(5, 7)
    args = arguments(op, torch.randn(3, 7), weight.mT, torch.randn(5))
    dy = torch.randn(3, 5)
    db = results(op, args, dy)[2]
    assert db.mT.is_contiguous()
    assert error(db, oracle(op, args, dy)[2]) < 8


@pytest.mark.parametrize("op", OPS)
def test_autocast_lowers_the_arguments_as_torchs_products_do(op: str) -> None:
    args = arguments(op, torch.randn(3, 4), torch.randn(4, 5), torch.randn(5).bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = results(op, args, torch.randn(3, 5).bfloat16())
        compiled = torch.compile(getattr(fuseline, op), backend="aot_eager", fullgraph=True)
        assert compiled(*args).dtype == torch.bfloat16
        assert torch.mm(args[0], args[1]).dtype == torch.bfloat16
    # The gradients go back through the casts.
    tensors = [t for t in args if isinstance(t, Tensor)]
    assert [t.dtype for t in found] == [torch.bfloat16, *(t.dtype for t in tensors)]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("batch", ["a", "b", "bias", "all"])
def test_vmap_over_each_argument(op: str, batch: str) -> None:
    names = ("a", "b", "bias")
    if op == "matmul_relu" and batch == "bias":
        pytest.skip("it has no bias")
    shapes = {"a": (2, 3, 4), "b": (4, 5), "bias": (5,)}
    over = [batch in (name, "all") for name in names]
    given = [torch.randn(*(6,) * own, *shapes[name]) for name, own in zip(names, over, strict=True)]
    args = arguments(op, *given)
    dims = tuple(0 if own else None for own in over)[: sum(isinstance(t, Tensor) for t in args)]
    dims = dims + (None,) * (len(args) - len(dims))
    public = getattr(fuseline, op)
    found = torch.vmap(public, in_dims=dims)(*args)
    for i in range(6):
        one = [t[i] if dim == 0 else t for t, dim in zip(args, dims, strict=True)]
        torch.testing.assert_close(found[i], public(*one))


def test_explain_choice_says_why_the_fused_epilogue_is_not_taken() -> None:
    told = fuseline.explain_choice(fuseline.matmul_relu, torch.ones(2, 3), torch.ones(3, 4))
    assert told.fwd.impl == "aten"
    assert dict(told.fwd.others)["onednn"] == "its ReLU makes 0 of NaN"
    told = fuseline.explain_choice(
        fuseline.matmul_add_gelu, torch.ones(2, 3), torch.ones(3, 4), torch.ones(4)
    )
    assert told.fwd.impl == "onednn"


def test_a_compiled_graph_holds_what_was_picked() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, example: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    from torch._dynamo.backends.common import aot_autograd

    backend = aot_autograd(fw_compiler=keep)
    args = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    torch.compile(fuseline.matmul_add, backend=backend, fullgraph=True)(*args)
    assert "matmul_add__aten" in graphs[0].code


def test_an_exported_program_keeps_the_operator() -> None:
    class Block(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return fuseline.matmul_relu(a, b)

    args = torch.randn(3, 4), torch.randn(4, 5)
    program = torch.export.export(Block(), args)
    assert "fuseline.matmul_relu.default" in str(program.graph)
    torch.testing.assert_close(program.module()(*args), Block()(*args))


@pytest.mark.parametrize("columns", [11, 31, 65])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_a_row_does_not_see_what_lies_behind_it(op: str, dtype: torch.dtype, columns: int) -> None:
    """Torch's products on processors with AMX do."""
    memory = torch.full((3, 9, columns + 5), torch.nan, dtype=dtype)
    gaps, b = memory[..., :columns].normal_(), torch.randn(columns, 24, dtype=dtype)
    nan = torch.randn(3, 9, columns, dtype=dtype)
    nan[:, 1, 0] = torch.nan
    for a in (gaps, nan):
        y = getattr(fuseline, op)(*arguments(op, a, b, torch.randn(24, dtype=dtype)))
        rows = y.isnan().any(-1)
        assert torch.equal(rows, a.isnan().any(-1)), rows
