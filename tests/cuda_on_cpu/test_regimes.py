"""docs/regimes.md is what the launches choose, by which a row's sums depend on its length alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cuda_on_cpu.sources import CUDA, CXX

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import regimes
from regimes import ALONG_ANY, LENGTHS, OPERATORS, SIZES

pytestmark = [
    pytest.mark.skipif(not CXX, reason="no C++ compiler"),
    pytest.mark.skipif(CUDA is None, reason="no headers of CUDA"),
]


@pytest.mark.slow
def test_the_page_is_what_the_launches_choose() -> None:
    assert regimes.PAGE.read_text() == regimes.page(), "python tools/regimes.py --write"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", OPERATORS)
def test_rows_of_a_length_have_one_order_of_sums(op: str, size: int) -> None:
    """However many they are and wherever they begin; one kernel each, which holds the row."""
    for n in LENGTHS:
        found = regimes.regimes(op, size, n).values()
        assert len({r.sums for r in found}) == 1, n
        for r in found:
            assert (r.threads * r.elements * r.blocks or r.pieces * r.piece) >= n, n


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", ALONG_ANY)
def test_columns_of_a_length_have_one_order_of_sums(op: str, size: int) -> None:
    """However many they are and wherever they begin; one kernel has them all."""
    for n in LENGTHS:
        found = regimes.regimes(op, size, n, columns=True)
        assert all((r.pieces * r.piece or r.threads * r.elements) >= n for r in found.values()), n
        assert len({r.sums for r in found.values()}) == 1, n


@pytest.mark.parametrize("size", SIZES)
def test_rows_have_a_grid_where_that_takes_fewer_turns(size: int) -> None:
    """Those of a megabyte always; of three, of which it holds no more than clusters, if few."""
    for megabytes, many in ((1, "row_grid_kernel"), (3, "row_long_kernel")):
        n = (megabytes << 20) // size
        kernels = [regimes.one("softmax", size, n, rows).kernel for rows in (1, 8, 4096)]
        assert kernels == ["row_grid_kernel", "row_grid_kernel", many]


@pytest.mark.parametrize("size", SIZES)
def test_few_rows_of_a_mask_have_a_block_for_each_piece(size: int) -> None:
    n = (1 << 18) // size + 1
    found = [regimes.one("masked_softmax", size, n, rows) for rows in (1, 8, 4096)]
    assert [(r.kernel, r.pieces) for r in found] == [("row_long_kernel", 16)] * 3
    assert [r.blocks for r in found] == [16, 16, 4]
