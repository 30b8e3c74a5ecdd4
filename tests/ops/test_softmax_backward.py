"""What is peculiar to softmax_backward: its gradients are the formula's, two inputs, dims."""

from __future__ import annotations

import pytest
import torch
from ops.instruction_sets import BUILT, for_instruction_set
from ops.softmax_rows import IMPLS, WITHOUT_BINARY
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.softmax_backward.op import CONTRACT
from fuseline.testing import Judge

OPS = torch.ops.fuseline
SPEC = table.load()["softmax_backward"]

pytestmark = WITHOUT_BINARY


def rows(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    dy, y = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype).softmax(-1)
    return dy.requires_grad_(), y.requires_grad_()


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for name, schema in CONTRACT.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


def test_gradients_of_every_order() -> None:
    args = rows(3, 7)
    for dim in (0, -1):
        ours = lambda dy, y, dim=dim: fuseline.softmax_backward(dy, y, dim)  # noqa: E731
        assert torch.autograd.gradcheck(ours, args, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(ours, args, check_fwd_over_rev=True)


def test_gradients_have_a_graph_only_where_one_is_wanted() -> None:
    dy, y = rows(3, 7)
    for wants in (False, True):
        dx = fuseline.softmax_backward(dy, y)
        grads = torch.autograd.grad(dx, (dy, y), torch.ones_like(dx), create_graph=wants)
        assert [g.requires_grad for g in grads] == [wants, wants]
    fuseline.softmax_backward(dy, y).sum().backward()
    assert dy.grad is not None
    assert not dy.grad.requires_grad


def test_it_is_the_gradient_of_softmax() -> None:
    x, dy = torch.randn(4, 61, requires_grad=True), torch.randn(4, 61)
    y = fuseline.softmax(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert torch.equal(fuseline.softmax_backward(dy, y.detach()), dx)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [1, 61, 1027, 20001])
def test_large_and_small_gradients(n: int, device: str, impl: str) -> None:
    for dtype in SPEC.dtypes:
        y = torch.randn(6, n, device=device).softmax(-1).to(dtype)
        dy = torch.randn(6, n, device=device) * torch.tensor(
            [[1e4], [1], [1e-4]] * 2, device=device
        )
        dy[3:] += 100  # of which the sum takes nearly all away
        given = {"dy": dy.to(dtype), "y": y}
        dx = fuseline.softmax_backward(**given, impl=impl)
        assert Judge(SPEC, given, "fwd").wrong({"out0": dx}) is None


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("inner", [2, 33, 200])
def test_columns_keep_the_budget(inner: int, device: str, impl: str) -> None:
    for dtype in SPEC.dtypes:
        dy, y = (torch.randn(3, 1027, inner, device=device).to(dtype) for _ in range(2))
        y = y.float().softmax(1).to(dtype)
        rows = {"dy": dy.transpose(1, 2), "y": y.transpose(1, 2)}
        before = native.copies()
        dx = fuseline.softmax_backward(dy, y, 1, impl).transpose(1, 2)
        assert native.copies() == before
        assert Judge(SPEC, rows, "fwd").wrong({"out0": dx}) is None


@pytest.mark.parametrize(("device", "impl"), IMPLS)
def test_every_dim(device: str, impl: str) -> None:
    dy, y = (torch.randn(3, 5, 7, dtype=torch.float64, device=device) for _ in range(2))
    for dim in range(-3, 3):
        dx = fuseline.softmax_backward(dy, y, dim, impl)
        assert dx.is_contiguous()
        torch.testing.assert_close(dx, y * (dy - (dy * y).sum(dim, keepdim=True)))


@pytest.mark.parametrize("shape", [(3, 8), (0, 8), (4, 0), (2, 3, 5)])
def test_opcheck(shape: tuple[int, ...]) -> None:
    for dim in (-1, 0):
        opcheck(OPS.softmax_backward, (*rows(*shape), dim))
        opcheck(OPS._softmax_backward, (*(t.detach() for t in rows(*shape)), dim))


def test_raw_operator_names_what_is_wrong() -> None:
    dy = torch.randn(3, 8)
    for args, word in (
        ((dy, dy[:, :4], 1), "y has shape"),
        ((dy, dy.double(), 1), "y must have the dtype of dy"),
        ((dy.int(), dy, 1), "dy must be float64"),
        ((dy, dy, -3), "dim is -3, expected one of -2 to 1"),
    ):
        with pytest.raises(RuntimeError, match=f"softmax_backward: {word}"):
            OPS.softmax_backward(*args)


def test_compiled_without_a_break_and_under_vmap() -> None:
    dy, y = rows(5, 3, 64, dtype=torch.float32)
    want = fuseline.softmax_backward(dy, y)
    compiled = torch.compile(fuseline.softmax_backward, fullgraph=True)(dy, y)
    assert torch.equal(compiled, want)
    got, expected = (torch.autograd.grad(t.square().sum(), (dy, y)) for t in (compiled, want))
    torch.testing.assert_close(got, expected)
    for dim in (-1, 1):
        along = lambda dy, y, dim=dim: fuseline.softmax_backward(dy, y, dim)  # noqa: E731
        batched = torch.vmap(along, in_dims=(1, 0))(dy.transpose(0, 1), y)
        assert torch.equal(batched, want)


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set_keeps_the_budget(isa: str) -> None:
    code = "from ops.test_softmax_backward import test_large_and_small_gradients as t\n"
    for_instruction_set(isa, code + "for n in (1, 61, 1027): t(n, 'cpu', 'cpu')")
