"""ATen's gelu on our kernels for the CPU: the tanh formula, in whatever layout it lies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from ops.takeovers import DTYPES, MARKS, assert_alike, calls, layouts
from torch import Tensor

import fuseline
from fuseline.testing.oracle.accuracy import ulp

aten = torch.ops.aten
pytestmark = MARKS


def both(dy: Tensor, x: Tensor, approximate: str) -> tuple[Tensor, Tensor]:
    backward: Callable[..., Tensor] = aten.gelu_backward
    return F.gelu(x, approximate=approximate), backward(dy, x, approximate=approximate)


@pytest.mark.parametrize("approximate", ["tanh", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_that_aten_takes(dtype: torch.dtype, approximate: str) -> None:
    eps = torch.finfo(dtype).eps
    for x in layouts("cpu", dtype):
        for dy in (torch.randn_like(x), torch.randn(x.shape).to(dtype)):
            wanted = both(dy, x, approximate)
            with fuseline.enabled(["gelu"]):
                found = both(dy, x, approximate)
            exact = both(dy.double(), x.double(), approximate)
            for a, b, good, size in zip(found, wanted, exact, (x, 2 * dy), strict=True):
                assert_alike(a, b)
                gap = (a.double() - good).abs() - 8 * eps * (good.abs() + size.abs())
                assert gap.numel() == 0 or gap.max() <= torch.finfo(dtype).smallest_normal


def test_which_calls_are_served() -> None:
    x = torch.randn(3, 2000)
    for a, dy, approximate, count in [
        (x, x, "tanh", (1, 1)),
        (x.T, x.T, "tanh", (1, 1)),
        (x.T, x.T.contiguous(), "tanh", (1, 0)),
        (x[:, ::2], x[:, ::2], "tanh", (0, 0)),
        (x, x.double(), "tanh", (1, 0)),
        (x, x[:1], "tanh", (1, 0)),
        (x, x, "none", (0, 0)),
    ]:
        wanted = both(dy, a, approximate)
        with fuseline.enabled(["gelu"]):
            before = calls("cpu", "gelu"), calls("cpu", "gelu_backward")
            found = both(dy, a, approximate)
            after = calls("cpu", "gelu"), calls("cpu", "gelu_backward")
        assert (after[0] - before[0], after[1] - before[1]) == count
        for y, good in zip(found, wanted, strict=True):
            assert_alike(y, good)
            torch.testing.assert_close(y, good)


def test_small_results_keep_their_digits() -> None:
    x = torch.linspace(-9, 9, 20011)
    with fuseline.enabled(["gelu"]):
        y = F.gelu(x, approximate="tanh")
    wide = x.double()
    u = 2 * (2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3)
    exact = wide / (1 + (-u).exp())
    assert ((y.double() - exact).abs() / ulp(exact, torch.float32)).max() < 8


def test_what_aten_refuses_it_refuses_still() -> None:
    for call in (
        lambda: F.gelu(torch.ones(3), approximate="erf"),
        lambda: F.gelu(torch.ones(3, dtype=torch.int32), approximate="tanh"),
        lambda: aten.gelu_backward(torch.ones(7), torch.ones(3), approximate="tanh"),
    ):
        with pytest.raises(RuntimeError):
            call()
        with fuseline.enabled(["gelu"]), pytest.raises(RuntimeError, match="aten::gelu"):
            call()
