"""What is peculiar to softmax and log_softmax: hard rows, long sums, dims, a gradient from y."""

from __future__ import annotations

import pytest
import torch
from ops.softmax_rows import (
    IMPLS,
    LENGTHS,
    WITHOUT_BINARY,
    for_instruction_set,
    hard_rows,
    keeps_the_budget,
)
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.log_softmax.op import CONTRACT as LOG_CONTRACT
from fuseline.ops.softmax.op import CONTRACT

OPS = torch.ops.fuseline
NAMES = ["softmax", "log_softmax"]

pytestmark = WITHOUT_BINARY


@pytest.mark.parametrize("contract", [CONTRACT, LOG_CONTRACT], ids=NAMES)
def test_schemas_in_the_binary_are_those_of_the_contract(contract) -> None:
    for name, schema in contract.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", LENGTHS)
def test_hard_rows(name: str, n: int, device: str, impl: str) -> None:
    for dtype in table.load()[name].dtypes:
        keeps_the_budget(name, hard_rows(n, dtype, device), impl)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("name", NAMES)
def test_a_long_sum_of_like_terms(name: str, device: str, impl: str) -> None:
    for x in (torch.zeros(1, 1 << 20), torch.full((2, 1_000_003), -0.3)):
        keeps_the_budget(name, x.to(device), impl)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("name", NAMES)
def test_every_dim(name: str, device: str, impl: str) -> None:
    ours, torchs = getattr(fuseline, name), getattr(torch, name)
    x = torch.randn(3, 5, 7, 4, dtype=torch.float64, device=device, requires_grad=True)
    dy = torch.randn_like(x)
    for dim in range(-4, 4):
        y, want = ours(x, dim, impl), torchs(x, dim)
        assert y.is_contiguous()
        torch.testing.assert_close(y, want)
        for got, expected in zip(
            torch.autograd.grad(y, x, dy), torch.autograd.grad(want, x, dy), strict=True
        ):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_last_dim_by_either_number_makes_no_copy(name: str) -> None:
    x, before = torch.randn(3, 2, 8)[:, :, :7], native.copies()
    for dim in (-1, 2):
        getattr(fuseline, name)(x, dim)
    assert native.copies() == before


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_every_order(name: str) -> None:
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    for dim in (0, -1):
        ours = lambda t, dim=dim: getattr(fuseline, name)(t, dim)  # noqa: E731
        assert torch.autograd.gradcheck(
            ours, x, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
        )
        assert torch.autograd.gradgradcheck(ours, x, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(3, 8), (0, 8), (4, 0), (2, 3, 5)])
def test_opcheck(name: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    opcheck(getattr(OPS, name), (x.clone().requires_grad_(),))
    y = getattr(OPS, f"_{name}")(x)
    opcheck(getattr(OPS, f"_{name}"), (x,))
    opcheck(getattr(OPS, f"_{name}_bwd"), (torch.randn_like(y), y))


@pytest.mark.parametrize("name", NAMES)
def test_raw_backward_names_what_is_wrong(name: str) -> None:
    y = torch.randn(3, 8)
    for args, word in (
        ((y[:, :4], y), "dy has shape"),
        ((y.double(), y), "dy must have the dtype of y"),
        ((y, y.int()), "y must be float64"),
    ):
        with pytest.raises(RuntimeError, match=f"{name}: {word}"):
            getattr(OPS, f"_{name}_bwd")(*args)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_without_a_break_and_under_vmap(name: str) -> None:
    ours, x = getattr(fuseline, name), torch.randn(5, 3, 64)
    compiled = torch.compile(ours, fullgraph=True)
    for dim in (-1, 1):
        want = ours(x, dim)
        assert torch.equal(compiled(x, dim), want)
        batched = torch.vmap(lambda t, dim=dim: ours(t, dim - (dim > 0)), in_dims=0)(x)
        assert torch.equal(batched, want)


@pytest.mark.parametrize("name", NAMES)
def test_symbolic_traces_name_the_operator(name: str) -> None:
    ours, x = getattr(fuseline, name), torch.randn(3, 5)
    for call in (lambda t: ours(t + 1), lambda t: ours(t + 1, 0)):
        traced = torch.fx.symbolic_trace(call)
        assert ours in [node.target for node in traced.graph.nodes]
        assert torch.equal(traced(x), call(x))


@pytest.mark.parametrize("isa", ["default", "avx2", "avx512"])
def test_each_instruction_set_keeps_the_budget(isa: str) -> None:
    code = "from ops.test_softmax import NAMES, test_hard_rows as t\n"
    for_instruction_set(
        isa, code + "for m in NAMES:\n  for n in (1, 61, 1027): t(m, n, 'cpu', 'cpu')"
    )
