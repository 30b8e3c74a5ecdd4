"""What is peculiar to softmax and log_softmax: hard rows, long sums, dims, a gradient from y."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from ops.instruction_sets import BUILT, for_instruction_set
from ops.softmax_rows import (
    IMPLS,
    LENGTHS,
    WITHOUT_BINARY,
    all_keep_the_budget,
    hard_columns,
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


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inner", [2, 5, 17, 64, 130, 263])
def test_hard_columns(name: str, inner: int, device: str, impl: str) -> None:
    """As the same rows, whatever lies beside them."""
    for dtype in table.load()[name].dtypes:
        for n in (1, 61, 1027):
            rows = hard_columns(n, inner, dtype, device)
            columns = rows.transpose(1, 2).contiguous()
            keeps_the_budget(name, rows, impl, columns)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("name", NAMES)
def test_a_long_column_of_like_terms(name: str, device: str, impl: str) -> None:
    columns = torch.full((1_000_003, 3), -0.3, device=device)
    keeps_the_budget(name, columns.T.contiguous(), impl, columns)


def peak_bytes(fn) -> int:
    """Return what resident memory grows by at its highest while fn runs."""

    def status(field: str) -> int:
        return 1024 * int(
            re.findall(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]
        )

    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = status("VmRSS")
    fn()
    return status("VmHWM") - before


@pytest.mark.skipif(not Path("/proc/self/clear_refs").is_file(), reason="a peak by Linux")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((1 << 25,), 0), ((1 << 24, 2), 0)])
@pytest.mark.parametrize("name", NAMES)
def test_a_huge_row_takes_no_more_memory_than_its_result(name, shape, dim, dtype) -> None:
    x = torch.randn(shape).to(dtype)
    assert peak_bytes(lambda: getattr(fuseline, name)(x, dim, impl="cpu")) < x.nbytes + (16 << 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_rows_too_long_to_keep_their_exponentials(name, dtype) -> None:
    rows = (4 * torch.randn(2, (1 << 22) + 5)).to(dtype)
    ours = getattr(fuseline, name)
    y = ours(rows, -1, "cpu")
    all_keep_the_budget(name, rows, y, ours(rows.T.contiguous(), -2, "cpu").T)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_copied(name: str, device: str, impl: str) -> None:
    """Nothing along any dim of a tensor, of neighbours at any distance; else x, once.

    A GPU reads rows of elements at any distance.
    """
    ours = partial(getattr(fuseline, name), impl=impl)
    wide = torch.randn(3, 5, 9, 8, device=device, requires_grad=True)
    for x, dims, copies in (
        (wide, (-4, -3, -2, -1, 0, 1, 2, 3), 0),
        (wide[..., :7], (3,), 0),
        (wide[:, :, :7], (2,), 0),
        (wide[:, 1:3, 2:], (1,), 0),
        (wide[0, :, :, :1], (0,), 1),
        (wide[0, :, :, :1], (1,), int(device == "cpu")),
        (wide.transpose(0, 3), (1,), 1),
    ):
        for dim in dims:
            before = native.copies()
            y = ours(x, dim)
            y.backward(torch.ones_like(y))
            assert native.copies() - before == copies, (x.shape, dim)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("name", NAMES)
def test_a_column_does_not_know_its_batch(name: str, device: str, impl: str) -> None:
    ours, x = getattr(fuseline, name), torch.randn(9, 130, 96, device=device)
    whole = ours(x, 1, impl)
    for part in (slice(0, 1), slice(4, 7), (slice(None), slice(None), slice(32, 64))):
        assert torch.equal(ours(x[part], 1, impl), whole[part])


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
    for dim in (-1, 0):
        opcheck(getattr(OPS, name), (x.clone().requires_grad_(), dim))
        y = getattr(OPS, f"_{name}")(x, dim)
        opcheck(getattr(OPS, f"_{name}"), (x, dim))
        opcheck(getattr(OPS, f"_{name}_bwd"), (torch.randn_like(y), y, dim))


@pytest.mark.parametrize("name", NAMES)
def test_raw_backward_names_what_is_wrong(name: str) -> None:
    y = torch.randn(3, 8)
    for args, word in (
        ((y[:, :4], y, 1), "dy has shape"),
        ((y.double(), y, 1), "dy must have the dtype of y"),
        ((y, y.int(), 1), "y must be float64"),
        ((y, y, 2), "dim is 2, expected one of -2 to 1"),
    ):
        with pytest.raises(RuntimeError, match=f"{name}: {word}"):
            getattr(OPS, f"_{name}_bwd")(*args)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_without_a_break_and_under_vmap(name: str) -> None:
    ours, x = getattr(fuseline, name), torch.randn(5, 3, 64)
    compiled = torch.compile(ours, fullgraph=True)
    for dim in (-1, 1, -2):
        want = ours(x, dim)
        assert torch.equal(compiled(x, dim), want)
        batched = torch.vmap(lambda t, dim=dim: ours(t, dim - (dim > 0)), in_dims=0)(x)
        assert torch.equal(batched, want)
    with pytest.raises(ValueError, match="dim is -3, expected one of -2 to 1"):
        torch.vmap(lambda t: ours(t, -3))(x)


@pytest.mark.parametrize("name", NAMES)
def test_symbolic_traces_name_the_operator(name: str) -> None:
    ours, x = getattr(fuseline, name), torch.randn(3, 5)
    for call in (lambda t: ours(t + 1), lambda t: ours(t + 1, 0)):
        traced = torch.fx.symbolic_trace(call)
        assert ours in [node.target for node in traced.graph.nodes]
        assert torch.equal(traced(x), call(x))


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set_keeps_the_budget(isa: str) -> None:
    code = "from ops.test_softmax import NAMES, test_hard_columns, test_hard_rows\n"
    code += "for m in NAMES:\n"
    code += "  for n in (1, 61, 1027): test_hard_rows(m, n, 'cpu', 'cpu')\n"
    code += "  for n in (5, 130): test_hard_columns(m, n, 'cpu', 'cpu')"
    for_instruction_set(isa, code)
