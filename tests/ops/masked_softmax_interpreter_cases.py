"""Triton kernels of masked_softmax on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_masked_softmax_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
from ops import test_masked_softmax as cases

from fuseline.ops.masked_softmax import impl_triton

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu")


@pytest.mark.parametrize("n", [1, 61, 1027])
def test_every_way(n):
    cases.test_every_way(n, "cpu", "triton")


def test_every_way_of_rows_in_blocks(monkeypatch):
    """Two of them, where a GPU has five or more: the interpreter takes as long for each."""
    monkeypatch.setattr(impl_triton, "_WHOLE", 0)
    cases.test_every_way(5003, "cpu", "triton")


@pytest.mark.parametrize("shape", cases.MASKS, ids=str)
def test_masks(shape):
    cases.test_a_mask_of_any_shape_is_read_where_it_lies(shape, "cpu", "triton")


@pytest.mark.parametrize(("queries", "keys"), [(1, 9), (4, 9), (9, 9), (9, 4), (3, 300)])
def test_causal(queries, keys):
    cases.test_causal_hides_what_is_right_of_the_lower_right_diagonal(
        queries, keys, "cpu", "triton"
    )


def test_rows_that_torch_makes_nan():
    cases.test_rows_that_torch_makes_nan("cpu", "triton")


@pytest.mark.parametrize("causal", [False, True])
def test_a_logarithm_of_rows_with_one_element_far_above(causal):
    for dtype in cases.SPEC.dtypes:
        cases.test_a_logarithm_of_rows_with_one_element_far_above(dtype, causal, "cpu", "triton")
