"""Results that keep a dense input's memory layout: as torch's own, from every implementation."""

from __future__ import annotations

import pytest
import torch
from ops.layouts import (
    KEEPING,
    LAYOUTS,
    as_tuple,
    inputs_with,
    keeps_the_budget,
    laid_out,
    run,
    strides,
)
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


@pytest.mark.parametrize("impl", ["cpu", "eager"])
@pytest.mark.parametrize("gap", [0, 4])
@pytest.mark.parametrize(("shape", "order"), LAYOUTS, ids=str)
@pytest.mark.parametrize("name", KEEPING)
def test_strides_are_those_of_torch(name, shape, order, gap, impl) -> None:
    inputs = inputs_with(table.load()[name], laid_out(shape, order, torch.float32, "cpu", gap))
    got = run(name, inputs, impl=impl)
    want = as_tuple(table.load()[name].eager.fn(**inputs))
    for mine, theirs in zip(got, want, strict=True):
        assert strides(mine) == strides(theirs)
    grads = torch.autograd.grad(got, tuple(inputs.values()), [torch.ones_like(t) for t in got])
    if impl == "cpu":
        kept = inputs[table.load()[name].keeps_layout]
        assert strides(grads[0]) == strides(torch.empty_like(kept))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", KEEPING)
def test_the_budget_holds_in_every_order(name: str, dtype: torch.dtype) -> None:
    """Also where an order has fewer columns than a vector, and where there are gaps."""
    for shape, order in [*LAYOUTS, ((2, 5, 900), (0, 2, 1)), ((3, 900), (1, 0))]:
        for gap in (0, 5):
            keeps_the_budget(name, laid_out(shape, order, dtype, "cpu", gap))


@pytest.mark.parametrize("shape", [(70, 300), (2, 3, 5)])
@pytest.mark.parametrize("name", KEEPING)
def test_nothing_is_copied_of_a_transposed_input(name: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape[:-2], shape[-1], shape[-2]).mT
    inputs = inputs_with(table.load()[name], x)
    before = native.copies()
    results = run(name, inputs)
    dys = [torch.empty_like(x) if t.shape == x.shape else torch.empty_like(t) for t in results]
    torch.autograd.grad(results, tuple(inputs.values()), dys)
    assert native.copies() == before


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1), (2, 1, 0), (0, 2, 1)], ids=str)
@pytest.mark.parametrize("name", KEEPING)
def test_fake_tensors_lie_alike(name: str, order: tuple[int, ...]) -> None:
    inputs = inputs_with(table.load()[name], laid_out((2, 3, 5), order, torch.float32, "cpu"))
    args = (*inputs.values(), "tanh") if name in ("bias_gelu", "geglu") else tuple(inputs.values())
    opcheck(getattr(torch.ops.fuseline, name), args)


@pytest.mark.parametrize("name", KEEPING)
def test_compiled_graphs_keep_the_layout(name: str) -> None:
    for order in ((2, 0, 1), (1, 0, 2)):
        inputs = inputs_with(table.load()[name], laid_out((4, 33, 65), order, torch.float32, "cpu"))
        compiled = torch.compile(getattr(fuseline, name), fullgraph=True)
        want, got = run(name, inputs), as_tuple(compiled(**inputs))
        for a, b in zip(want, got, strict=True):
            assert strides(a) == strides(b)
            assert torch.equal(a, b)
        dys = [torch.randn_like(t) for t in want]
        wanted, found = (torch.autograd.grad(r, tuple(inputs.values()), dys) for r in (want, got))
        for a, b in zip(wanted, found, strict=True):
            assert torch.equal(a, b)
