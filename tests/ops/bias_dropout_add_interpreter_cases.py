"""bias_dropout_add in Triton on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_bias_dropout_add_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from ops import test_bias_dropout_add as cases

from fuseline import table

SPEC = table.load()["bias_dropout_add"]

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_what_is_dropped_depends_on_seed_and_place_alone(dtype):
    cases.test_what_is_dropped_depends_on_seed_and_place_alone(dtype, "cpu", "triton")


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("shape", [(12, 36), (33, 70), (2, 3, 20), (2, 3, 2, 3, 2)], ids=str)
def test_any_layout_without_a_copy(shape, seed):
    cases.test_any_layout_without_a_copy(shape, seed, "cpu", "triton")


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
def test_every_type(dtype, seed):
    # Multiples of 1/8 below 4 and a scale of 2: no type rounds.
    x, bias, residual = (torch.randint(-16, 17, (2, 3, 70)).to(dtype) / 8 for _ in range(3))
    crossing = residual.transpose(0, 2).contiguous().transpose(0, 2)
    for r in (residual, crossing):
        cases.check(x, bias, r, 0.5, seed, "triton")


def test_p_of_0_and_of_1():
    cases.test_p_of_0_and_of_1("cpu", "triton")


def test_a_seed_in_a_tensor_is_that_seed():
    cases.test_a_seed_in_a_tensor_is_that_seed("cpu", "triton")


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_under_vmap_without_a_seed_it_drops_as_torch_does(randomness):
    cases.test_under_vmap_without_a_seed_it_drops_as_torch_does(randomness, "cpu", "triton")
