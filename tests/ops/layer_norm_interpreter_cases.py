"""Triton kernels of layer_norm on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_layer_norm_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from ops import budgets, test_layer_norm

import fuseline
from fuseline import table
from fuseline.core.selection.tuned import Entry, Table, Tile
from fuseline.ops.layer_norm import impl_triton

SPEC = table.load()["layer_norm"]
# Whole rows, and with `tiles_of_256` rows in blocks.
LENGTHS = [61, 700]

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu", "few_programs", "tiles_of_256")


@pytest.fixture
def tiles_of_256(monkeypatch):
    kinds = impl_triton._TABLE.entries
    small = Table("", dict.fromkeys(kinds, (Entry(None, Tile(256, 1, 2)),)))
    monkeypatch.setattr(impl_triton, "_TABLE", small)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize(("dtype", "mean"), [(torch.float32, 1e4), (torch.float64, 1e7)])
def test_a_mean_of_ten_million_spreads_costs_no_digits(dtype, mean, n):
    test_layer_norm.test_a_mean_of_ten_million_spreads_costs_no_digits(
        dtype, mean, n, "cpu", "triton"
    )


@pytest.mark.parametrize("n", LENGTHS)
def test_an_outlier_in_the_place_that_all_are_compared_with(n):
    test_layer_norm.test_an_outlier_in_the_place_that_all_are_compared_with(n, "cpu", "triton")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("n", LENGTHS)
def test_what_a_bias_leaves_is_right(n, dtype):
    test_layer_norm.test_what_a_bias_leaves_is_right(n, dtype, "cpu", "triton")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (torch.float32, 1e30),
        (torch.float32, 1e-41),
        (torch.float64, 1e300),
        (torch.float64, 1e-300),
    ],
    ids=str,
)
@pytest.mark.parametrize("n", LENGTHS)
def test_rows_that_leave_the_normal_range(n, dtype, scale):
    test_layer_norm.test_rows_that_leave_the_normal_range(n, dtype, scale, "cpu", "triton")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("n", LENGTHS)
def test_nan_and_inf_stay_in_their_rows(n):
    test_layer_norm.test_nan_and_inf_stay_in_their_rows(n, "cpu", "triton")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rows_of_one_element_have_torchs_gradients(dtype):
    test_layer_norm.test_rows_of_one_element_have_torchs_gradients(dtype, "cpu", "triton")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", LENGTHS)
def test_an_infinite_weight_gives_infinities(n, dtype):
    test_layer_norm.test_an_infinite_weight_gives_infinities(n, dtype, "cpu", "triton")


@pytest.mark.parametrize("n", LENGTHS)
def test_parameters_have_dtypes_of_their_own(n):
    test_layer_norm.test_parameters_have_dtypes_of_their_own(n, "cpu", "triton")


@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
@pytest.mark.parametrize("n", LENGTHS)
def test_within_the_budget(n, dtype):
    """Odd rows, apart by a stride of their own."""
    x, (weight, bias) = torch.randn(3, n + 6).to(dtype)[:, 6:], torch.randn(2, n).to(dtype)
    inputs = {"x": x, "weight": weight, "bias": bias, "eps": 1e-5}
    budgets.keeps_the_budget(SPEC, "triton", inputs)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("need", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_only_what_is_needed_is_computed(n, need):
    x, dy = torch.randn(2, 3, n)
    weight = torch.randn(n)
    _, mean, rstd = torch.ops.fuseline._layer_norm_fwd__triton(x, weight, None, 1e-5)
    op = torch.ops.fuseline._layer_norm_bwd__triton
    every = op(dy, x, weight, mean, rstd, True, True, True)
    some = op(dy, x, weight, mean, rstd, *map(bool, need))
    for wanted, mine, whole in zip(need, some, every, strict=True):
        assert torch.equal(mine, whole) if wanted else mine.shape == (0,)
    for mine, other in zip(
        every, torch.ops.fuseline._layer_norm_bwd(dy, x, weight, mean, rstd, True, True, True),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_many_rows_and_like_terms():
    """More rows than the persistent grid holds at once; all roundings of a sum are of one sign."""
    x = torch.full((1 << 15, 1), 0.7390851)
    mean, rstd = torch.zeros(1 << 15), torch.ones(1 << 15)
    _, dweight, dbias = torch.ops.fuseline._layer_norm_bwd__triton(
        x, x, torch.ones(1), mean, rstd, False, True, True
    )
    torch.testing.assert_close(dbias, x.double().sum(0).float(), rtol=1e-6, atol=0.0)
    assert torch.equal(dweight, torch.zeros(1))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (3, 1)])
def test_empty_rows_and_rows_of_one(shape):
    leaves = [torch.randn(s, requires_grad=True) for s in (shape, shape[1:], shape[1:])]
    y = fuseline.layer_norm(*leaves, impl="triton")
    y.backward(torch.randn(shape))
    x, weight, bias = leaves
    assert torch.equal(y, bias.expand(shape))
    assert torch.equal(x.grad, torch.zeros(shape))
    assert torch.equal(weight.grad, torch.zeros(shape[1:]))


@pytest.mark.parametrize("n", [5, 700])
def test_a_row_does_not_depend_on_the_number_of_rows(n):
    x = torch.randn(9, n)
    assert torch.equal(
        fuseline.layer_norm(x, impl="triton")[8:], fuseline.layer_norm(x[8:], impl="triton")
    )


def test_the_raw_backward_refuses_what_it_cannot_read():
    x, saved = torch.randn(4, 8), torch.ones(4)
    op = torch.ops.fuseline._layer_norm_bwd__triton
    for dy, mean, rstd, name in (
        (x[:1], saved, saved, "dy"),
        (x, saved[:1], saved, "mean"),
        (x, saved, saved.double(), "rstd"),
    ):
        with pytest.raises(ValueError, match=name):
            op(dy, x, None, mean, rstd, True, False, False)
