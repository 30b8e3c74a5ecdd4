"""Triton kernels of pointwise_chain on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_pointwise_chain_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from ops import test_pointwise_chain

import fuseline
from fuseline import table
from fuseline.testing.accuracy import errors, over_budget

SPEC = table.load()["pointwise_chain"]

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu")


@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
def test_ties_go_to_each_side_of_max_by_half(dtype):
    test_pointwise_chain.test_ties_go_to_each_side_of_max_by_half(dtype, "cpu", "triton")


@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
def test_no_digit_is_lost_where_the_formula_cancels(dtype):
    test_pointwise_chain.test_no_digit_is_lost_where_the_formula_cancels(dtype, "cpu", "triton")


@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
@pytest.mark.parametrize("shape", [(), (61, 67), (24, 128)])
def test_within_the_budget(shape, dtype):
    x = torch.randn(shape).to(dtype).requires_grad_()
    y = fuseline.pointwise_chain(x, impl="triton")
    dy = torch.randn_like(y)
    y.backward(dy)
    given = {"x": x.detach()}
    eager = x.detach().clone().requires_grad_()
    plain = SPEC.eager.fn(eager)
    plain.backward(dy)
    for direction, mine, theirs in (
        ("fwd", {"out0": y.detach()}, {"out0": plain.detach()}),
        ("bwd", {"x": x.grad}, {"x": eager.grad}),
    ):
        figures, yardstick = (
            next(iter(errors(SPEC, given, direction, r, (dy,)).values())) for r in (mine, theirs)
        )
        assert over_budget(SPEC.budget, dtype, direction, figures, yardstick) is None
