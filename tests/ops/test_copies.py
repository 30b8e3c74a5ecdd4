"""The CPU's copies between layouts: every order of dimensions, steps, gaps and repetitions."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from ops.layouts import laid_out
from torch import Tensor

import fuseline
from fuseline.core import native

SHAPES = ((5, 7), (70, 300), (300, 70), (65, 1, 3), (4, 33, 65), (2, 64, 3, 20), (3, 2, 5, 2, 7))
DTYPES = (torch.float64, torch.float32, torch.bfloat16)

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def is_copied_right(x: Tensor) -> None:
    """Whether an operator whose result is contiguous sees the elements of x where they are."""
    before = native.copies()
    got, copied = fuseline.rms_norm(x, impl="cpu"), native.copies() - before
    assert torch.equal(got, fuseline.rms_norm(x.contiguous(), impl="cpu"))
    assert copied <= 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_order_of_dimensions(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for order in permutations(range(len(shape))):
        for gap in (0, 3):
            is_copied_right(laid_out(shape, order, dtype, "cpu", gap))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_and_repetitions(dtype: torch.dtype) -> None:
    x = torch.randn(6, 130, 66).to(dtype)
    for view in (
        x[..., ::2],
        x[:, ::3, 1::4],
        x[::2].mT,
        x[..., :1].expand(6, 130, 66),
        x[:1].mT.expand(6, 66, 130),
        x[:, :1].expand(6, 130, 66).transpose(0, 2),
        x.flatten()[: 6 * 130 + 65].unfold(0, 66, 1)[:, ::2],
    ):
        is_copied_right(view)


def test_large_planes_on_several_threads() -> None:
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            is_copied_right(torch.randn(700, 1301).T)
            is_copied_right(torch.randn(3, 257, 9, 65).permute(0, 2, 3, 1))
    finally:
        torch.set_num_threads(threads)
