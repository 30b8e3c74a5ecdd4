"""Triton kernels of bias_gelu on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_bias_gelu_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from ops import budgets
from ops import test_bias_gelu as cases
from ops.layouts import inputs_with, keeps_the_budget, laid_out, run

SPEC = cases.SPEC

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu", "few_programs")


@pytest.mark.parametrize("approximate", cases.FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_digits_where_the_result_is_small(dtype, approximate):
    cases.test_digits_where_the_result_is_small(dtype, approximate, "cpu", "triton")


@pytest.mark.parametrize("approximate", cases.FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_far_from_zero(dtype, approximate):
    cases.test_far_from_zero(dtype, approximate, "cpu", "triton")


@pytest.mark.parametrize("approximate", cases.FORMULAS)
@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
@pytest.mark.parametrize("n", [61, 300])
def test_within_the_budget(n, dtype, approximate):
    x, bias = torch.randn(45, n + 3).to(dtype)[:, 3:], torch.randn(n).to(dtype)
    inputs = {"x": x, "bias": bias, "approximate": approximate}
    budgets.keeps_the_budget(SPEC, "triton", inputs)


ORDERS = [((70, 30), (1, 0)), ((2, 3, 65), (1, 0, 2)), ((2, 33, 5), (0, 2, 1))]


@pytest.mark.parametrize("gap", [0, 4])
@pytest.mark.parametrize(("shape", "order"), ORDERS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_every_order_of_dimensions(dtype, shape, order, gap):
    x = laid_out(shape, order, dtype, "cpu", gap)
    keeps_the_budget("bias_gelu", x, "triton")
    (y,) = run("bias_gelu", inputs_with(SPEC, x), impl="triton")
    assert y.stride() == torch.empty_like(x).stride()
