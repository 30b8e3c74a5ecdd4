"""What is peculiar to double_softmax: hard rows, what it saves, gradients of rows near one-hot."""

from __future__ import annotations

import pytest
import torch
from ops.instruction_sets import BUILT, for_instruction_set
from ops.softmax_rows import (
    IMPLS,
    LENGTHS,
    WITHOUT_BINARY,
    hard_columns,
    hard_rows,
    keeps_the_budget,
)
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.double_softmax.op import CONTRACT

OPS = torch.ops.fuseline
SPEC = table.load()["double_softmax"]

pytestmark = WITHOUT_BINARY


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for name, schema in CONTRACT.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", LENGTHS)
def test_hard_rows(n: int, device: str, impl: str) -> None:
    for dtype in SPEC.dtypes:
        keeps_the_budget("double_softmax", hard_rows(n, dtype, device), impl)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("inner", [2, 17, 200])
def test_hard_columns(inner: int, device: str, impl: str) -> None:
    for dtype in SPEC.dtypes:
        for n in (1, 61, 1027):
            rows = hard_columns(n, inner, dtype, device)
            columns, before = rows.transpose(1, 2).contiguous(), native.copies()
            keeps_the_budget("double_softmax", rows, impl, columns)
            assert native.copies() == before


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [2, 61, 20001])
def test_what_is_saved_are_the_maximum_and_the_inverses_of_the_sums(
    n: int, device: str, impl: str
) -> None:
    x = torch.randn(3, n, dtype=torch.float64, device=device)
    y, stats = OPS._double_softmax_fwd(x, -1)
    of_columns, same_stats = OPS._double_softmax_fwd(x.T.contiguous(), 0)
    torch.testing.assert_close((of_columns.T, same_stats), (y, stats))
    m = x.amax(-1)
    e = torch.exp(x - m[:, None])
    p = e / e.sum(-1, keepdim=True)
    second = torch.exp(p - p.amax(-1, keepdim=True)).sum(-1)
    torch.testing.assert_close(stats, torch.stack((m, 1 / e.sum(-1), 1 / second), -1))
    assert torch.equal(y, fuseline.double_softmax(x, impl=impl))


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("n", [1, 5, 61, 1027])
def test_a_row_near_one_hot_has_no_gradient_but_its_own(n: int, device: str, impl: str) -> None:
    """What the formula cancels to zero is zero, not the rounding of its terms."""
    for dtype in SPEC.dtypes:
        x = torch.full((4, n), -1e4, dtype=dtype, device=device)
        x[:, n // 2] = 1e4
        x.requires_grad_()
        y = fuseline.double_softmax(x, impl=impl)
        (dx,) = torch.autograd.grad(y, x, torch.randn_like(y))
        assert not dx.any()


@pytest.mark.parametrize(("device", "impl"), IMPLS)
def test_every_dim(device: str, impl: str) -> None:
    x = torch.randn(3, 5, 7, dtype=torch.float64, device=device, requires_grad=True)
    dy = torch.randn_like(x)
    for dim in range(-3, 3):
        y, want = fuseline.double_softmax(x, dim, impl), x.softmax(dim).softmax(dim)
        assert y.is_contiguous()
        torch.testing.assert_close(y, want)
        got, expected = (torch.autograd.grad(t, x, dy)[0] for t in (y, want))
        torch.testing.assert_close(got, expected)
    assert torch.equal(fuseline.double_softmax(x, impl=impl), fuseline.double_softmax(x, 1, impl))


def test_gradients_of_every_order() -> None:
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(fuseline.double_softmax, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(fuseline.double_softmax, x, check_fwd_over_rev=True)


@pytest.mark.parametrize("shape", [(3, 8), (0, 8), (4, 0), (2, 3, 5)])
def test_opcheck(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    for dim in (-1, 0):
        opcheck(OPS.double_softmax, (x.clone().requires_grad_(), dim))
        y, stats = OPS._double_softmax_fwd(x, dim)
        opcheck(OPS._double_softmax_fwd, (x, dim))
        opcheck(OPS._double_softmax_bwd, (torch.randn_like(y), x, stats, dim))


def test_raw_backward_names_what_is_wrong() -> None:
    x = torch.randn(3, 8)
    y, stats = OPS._double_softmax_fwd(x, -1)
    for args, word in (
        ((y[:, :4], x, stats, 1), "dy has shape"),
        ((y, x, stats[:, :2], 1), "stats has shape"),
        ((y, x, stats, 0), "stats has shape"),
        ((y, x, stats.double(), 1), "stats must be"),
        ((y, x, stats, 2), "dim is 2, expected one of -2 to 1"),
    ):
        with pytest.raises(RuntimeError, match=f"double_softmax: {word}"):
            OPS._double_softmax_bwd(*args)
    columns = stats.T.contiguous().T
    whole = OPS._double_softmax_bwd(y, x, stats, 1)
    assert torch.equal(OPS._double_softmax_bwd(y, x, columns, 1), whole)


def test_compiled_without_a_break_and_under_vmap() -> None:
    x = torch.randn(5, 3, 64)
    want = fuseline.double_softmax(x, -1)
    compiled = torch.compile(fuseline.double_softmax, fullgraph=True)
    assert torch.equal(compiled(x, -1), want)
    assert torch.equal(torch.vmap(fuseline.double_softmax, in_dims=1, out_dims=1)(x), want)
    first = torch.vmap(lambda t: fuseline.double_softmax(t, 0))(x)
    assert torch.equal(first, fuseline.double_softmax(x, 1))


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set_keeps_the_budget(isa: str) -> None:
    code = "from ops import test_double_softmax as t\n"
    code += "for n in (1, 61, 1027): t.test_hard_rows(n, 'cpu', 'cpu')\n"
    code += "for n in (2, 17, 200): t.test_hard_columns(n, 'cpu', 'cpu')\n"
    code += "t.test_a_row_near_one_hot_has_no_gradient_but_its_own(61, 'cpu', 'cpu')"
    for_instruction_set(isa, code)
