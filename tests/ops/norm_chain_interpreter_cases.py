"""Triton kernels of norm_chain on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_norm_chain_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from ops import budgets, test_norm_chain

from fuseline import table

SPEC = table.load()["norm_chain"]

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu")


@pytest.mark.parametrize("n", [61, 300])
def test_a_sum_that_cancels_costs_no_digits(n):
    test_norm_chain.test_a_sum_that_cancels_costs_no_digits(n, "cpu", "triton")


@pytest.mark.parametrize("n", [16, 20000])
def test_powers_that_fp32_does_not_have(n):
    test_norm_chain.test_powers_that_fp32_does_not_have(n, "cpu", "triton")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("n", [8, 20000])
def test_inf_and_nan_are_the_chains(n):
    test_norm_chain.test_inf_and_nan_are_the_chains(n, "cpu", "triton")


@pytest.mark.parametrize(  # the interpreter is slow
    ("n", "dtype"),
    [*((61, d) for d in SPEC.dtypes), (20001, torch.float64), (20001, torch.bfloat16)],
)
def test_within_the_budget(n, dtype):
    x = (torch.randn(2, n + 6) * n**-0.5 / 8 + 1 / n).to(dtype)[:, 6:]
    budgets.keeps_the_budget(SPEC, "triton", {"x": x})


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("n", [1, 2, 61, 20001])
def test_gradients_of_rows_with_an_infinity_are_the_chains(n):
    dtypes = SPEC.dtypes if n < 100 else (torch.bfloat16,)  # the interpreter is slow
    test_norm_chain.have_the_chains_infinities(n, "cpu", "triton", dtypes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("n", [7, 20001])
def test_gradients_that_overflow_have_their_sign(n):
    test_norm_chain.test_gradients_that_overflow_have_their_sign(n, "cpu", "triton")
