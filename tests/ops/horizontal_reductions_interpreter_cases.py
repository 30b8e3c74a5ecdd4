"""Triton kernels of the horizontal reductions on the CPU; needs TRITON_INTERPRET=1 before triton.

Run by test_horizontal_reductions_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from ops import test_horizontal_reductions as cases

from fuseline.primitives.triton import rows
from fuseline.testing.accuracy import errors, over_budget

pytestmark = pytest.mark.usefixtures("loop_bounds_under_numpy_2_4", "small_blocks")


@pytest.fixture
def small_blocks(monkeypatch):
    """The interpreter calls Python for every element that a reduction of our own combines."""
    monkeypatch.setattr(rows, "_BLOCK", 128)


@pytest.mark.parametrize("name", cases.SPECS)
@pytest.mark.parametrize("n", [61, 1027])
def test_a_sum_that_cancels_costs_no_digits(n, name):
    cases.test_a_sum_that_cancels_costs_no_digits(n, name, "cpu", "triton")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])  # bfloat16 is cut off here
@pytest.mark.parametrize("n", [7, 300])
def test_amax_shares_its_gradient_among_ties(n, dtype):
    cases.test_amax_shares_its_gradient_among_ties(n, dtype, "cpu", "triton")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("name", cases.SPECS)
def test_inf_and_nan_are_torchs(name, dtype):
    cases.test_inf_and_nan_are_torchs(300, name, dtype, "cpu", "triton")


@pytest.mark.parametrize("name", cases.SPECS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_within_the_budget(dtype, name):
    spec = cases.SPECS[name]
    leaf = torch.randn(3, 136).to(dtype)[:, 3:].requires_grad_()
    eager = leaf.detach().clone().requires_grad_()
    given = {"x": leaf.detach()}
    ys, plain = cases.call(name, leaf, "triton"), spec.eager.fn(eager)
    dys = tuple(torch.randn_like(y) for y in ys)
    (dx,), (plain_dx,) = (torch.autograd.grad(o, t, dys) for o, t in ((ys, leaf), (plain, eager)))
    for direction, mine, theirs in (
        ("fwd", *({f"out{i}": t.detach() for i, t in enumerate(o)} for o in (ys, plain))),
        ("bwd", {"x": dx}, {"x": plain_dx}),
    ):
        figures, yardsticks = (errors(spec, given, direction, r, dys) for r in (mine, theirs))
        for key, figure in figures.items():
            wrong = over_budget(spec.budget, dtype, direction, figure, yardsticks[key])
            assert wrong is None
