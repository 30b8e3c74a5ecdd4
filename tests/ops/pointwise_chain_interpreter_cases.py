"""Triton kernels of pointwise_chain on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_pointwise_chain_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from ops import budgets, test_pointwise_chain
from ops.layouts import inputs_with, keeps_the_budget, laid_out, run

from fuseline import table

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
    budgets.keeps_the_budget(SPEC, "triton", {"x": torch.randn(shape).to(dtype)})


ORDERS = [((70, 30), (1, 0)), ((2, 3, 65), (1, 0, 2)), ((2, 33, 5), (0, 2, 1))]


@pytest.mark.parametrize("gap", [0, 4])
@pytest.mark.parametrize(("shape", "order"), ORDERS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_every_order_of_dimensions(dtype, shape, order, gap):
    x = laid_out(shape, order, dtype, "cpu", gap)
    keeps_the_budget("pointwise_chain", x, "triton")
    (y,) = run("pointwise_chain", inputs_with(SPEC, x), impl="triton")
    assert y.stride() == torch.empty_like(x).stride()
