"""The cross-entropy's CUDA kernels on a CPU: rows of any length, from any address."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from cuda_on_cpu.calls import F64, call, library_fixture
from cuda_on_cpu.sources import CUDA, CXX
from cuda_on_cpu.test_pointwise_on_cpu import ALL, assert_nothing_beside, result_of
from torch import Tensor

from fuseline.ops.cross_entropy.reference import cross_entropy as reference

pytestmark = [
    pytest.mark.skipif(not CXX, reason="no C++ compiler"),
    pytest.mark.skipif(CUDA is None, reason="no headers of CUDA"),
]

cross_entropy = library_fixture("cross_entropy")
REDUCTIONS = ("none", "mean", "sum")
IGNORED = -100
# Rows of a warp and of a block, of one turn and of several, whole packs of 16 bytes and not.
LENGTHS = (1, 3, 8, 61, 130, 256, 1024, 1027, 5000, 8192, 20001)


class How(NamedTuple):
    reduction: str = "mean"
    smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float = 0.0
    weighted: bool = False

    def numbers(self) -> list[float]:
        rest = [self.smoothing, self.z_loss, self.softcap]
        return [REDUCTIONS.index(self.reduction), IGNORED, *rest]


HOWS = (
    How(),
    How("sum", smoothing=0.1),
    How("none", z_loss=1e-2, softcap=2.0),
    How("mean", 0.2, 1e-2, 3.0, weighted=True),
)


class Found(NamedTuple):
    loss: Tensor
    stats: Tensor
    total: Tensor
    weight: Tensor | None


def with_gap(x: Tensor, gap: int) -> Tensor:
    """NaN between rows, which begin an element off a multiple of 16 bytes."""
    if not gap:
        return x
    rows, n = x.shape
    room = torch.full((rows * (n + gap) + 1,), torch.nan, dtype=x.dtype)[1:]
    return room.view(rows, n + gap)[:, :n].copy_(x)


def weights(n: int, how: How, stat: torch.dtype) -> Tensor | None:
    return torch.rand(n).to(stat) + 0.1 if how.weighted else None


def forward(library: Any, x: Tensor, target: Tensor, weight: Tensor | None, how: How) -> Found:
    """What the order of threads may not change."""
    rows, n = x.shape
    stat = torch.promote_types(x.dtype, torch.float32)
    found = []
    for backwards in (0, 1):
        losses, stats, loss = (torch.full(s, 7.0, dtype=stat) for s in ((rows,), (rows, 2), ()))
        total, room = torch.empty(2, dtype=F64), torch.empty(64, dtype=F64)
        given = [x, target, weight, losses, stats, loss, total, room]
        numbers = [rows, n, x.stride(0), *how.numbers(), backwards]
        call(library, f"forward_{ALL[x.dtype]}", given, numbers)
        found.append((losses if how.reduction == "none" else loss, stats, total))
    assert all(map(same, *found))
    return Found(*found[0], weight)


def gradient(library: Any, dloss: Tensor, x: Tensor, target: Tensor, of: Found, how: How) -> Tensor:
    rows, n = x.shape
    dx, room = result_of(torch.empty(rows, n, dtype=x.dtype))
    given = [x, target, of.weight, of.stats, dloss, of.total, dx]
    call(library, f"backward_{ALL[x.dtype]}", given, [rows, n, x.stride(0), *how.numbers(), 0])
    assert_nothing_beside(room, dx.numel())
    return dx


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def drawn(rows: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x = (3 * torch.randn(rows, n, dtype=F64)).to(dtype)
    target = torch.randint(n, (rows,))
    target[1] = IGNORED
    return x, target


def assert_right(library: Any, x: Tensor, target: Tensor, how: How) -> tuple[Tensor, Tensor]:
    weight = weights(x.shape[1], how, torch.promote_types(x.dtype, torch.float32))
    of = forward(library, x, target, weight, how)
    dloss = torch.randn(of.loss.shape, dtype=F64).to(of.loss.dtype)
    dx = gradient(library, dloss, x, target, of, how)
    wide = x.double().requires_grad_()
    given = (None if weight is None else weight.double(), IGNORED, how.reduction, *how[1:3])
    exact = reference(wide, target, *given, how.softcap or None)
    (right,) = torch.autograd.grad(exact, wide, dloss.double())
    eps = torch.finfo(of.loss.dtype).eps
    torch.testing.assert_close(of.loss.double(), exact.detach(), rtol=8 * eps, atol=8 * eps)
    size, own = right.abs().max().item(), torch.finfo(x.dtype)
    least = 16 * eps * size + own.smallest_normal * own.eps  # the last digit of a subnormal number
    torch.testing.assert_close(dx.double(), right, rtol=own.eps, atol=least)
    return of.loss, dx


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_length(cross_entropy, dtype, n) -> None:
    """Right, and the same bits from any address."""
    for how in HOWS:
        torch.manual_seed(n)
        x, target = drawn(3, n, dtype)
        state = torch.random.get_rng_state()
        want = assert_right(cross_entropy, x, target, how)
        for gap in (3, 8):
            torch.random.set_rng_state(state)
            found = assert_right(cross_entropy, with_gap(x, gap), target, how)
            assert all(map(same, found, want))


@pytest.mark.parametrize("n", [5, 3000])
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_rows_that_have_no_loss(cross_entropy, dtype, n) -> None:
    """Zeros where the target is ignored, whatever the logits; NaN where it is no class, or where
    torch has NaN.
    """
    torch.manual_seed(n)
    x, _ = drawn(6, n, dtype)
    target = torch.tensor([0, IGNORED, n, -1, 1, 2])
    x[1], x[4], x[5, 0] = torch.nan, -torch.inf, torch.inf
    how = How("none", smoothing=0.1)
    of = forward(cross_entropy, x, target, None, how)
    assert of.loss.isnan().tolist() == [False, False, True, True, True, True]
    assert of.loss[1] == 0
    dx = gradient(cross_entropy, torch.ones_like(of.loss), x, target, of, how)
    assert dx.isnan().all(1).tolist() == [False, False, True, True, True, True]
    assert not dx[1].any()
    assert not dx[0].isnan().any()


def test_all_targets_ignored(cross_entropy) -> None:
    x, target = torch.randn(3, 5), torch.full((3,), IGNORED)
    of = forward(cross_entropy, x, target, None, How())
    assert of.loss.isnan()
    assert not gradient(cross_entropy, torch.ones(()), x, target, of, How()).any()
    assert forward(cross_entropy, x, target, None, How("sum")).loss == 0
    assert forward(cross_entropy, x[:0], target[:0], None, How("sum")).loss == 0


def test_far_from_zero(cross_entropy) -> None:
    """A large maximum takes no digits from the loss or the gradient."""
    torch.manual_seed(0)
    for how in HOWS[:2]:
        for dtype in (torch.float32, F64):
            x, target = drawn(4, 3001, dtype)
            assert_right(cross_entropy, x + 256, target, how)


def test_so_many_rows_that_blocks_sum_them(cross_entropy) -> None:
    """More than a block sums, in which the sum loses no digits."""
    torch.manual_seed(0)
    for dtype, count in ((torch.float32, 2 * 16384 + 5), (F64, 16384 + 5)):
        x, target = drawn(count, 2, dtype)
        target[::7] = IGNORED
        assert_right(cross_entropy, x, target, How(weighted=True))
