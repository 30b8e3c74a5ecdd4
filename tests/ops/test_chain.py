"""Two products: which come first, and what is refused."""

from __future__ import annotations

import pytest
import torch

import fuseline
from fuseline.ops.matmul_matmul.op import CHAIN


def made(rows: int, k: int, n: int, p: int) -> list[torch.Tensor]:
    return [torch.randint(-3, 4, size).float() for size in ((rows, k), (k, n), (n, p))]


@pytest.mark.parametrize(
    ("sizes", "first"),
    [((40, 6, 40, 6), True), ((2, 6, 40, 6), False), ((4, 40, 6, 40), False)],
)
def test_the_weights_come_first_where_that_takes_fewer_operations(sizes, first) -> None:
    x, w1, w2 = made(*sizes)
    assert CHAIN.weights_first(CHAIN.of(x, w1, w2, None)) is first
    assert CHAIN.weights_first(CHAIN.of(x, w1, w2, "relu")) is False
    rows, k, n, p = sizes
    assert (2 * k * p * (n + rows) < 2 * rows * n * (k + p)) is first


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("impl", ["auto", "aten", "eager"])
@pytest.mark.parametrize("sizes", [(40, 6, 40, 6), (7, 9, 5, 8)])
def test_small_integers_are_exact(sizes, impl, activation) -> None:
    leaves = [t.requires_grad_() for t in made(*sizes)]
    y = fuseline.matmul_matmul(*leaves, activation, impl=impl)
    dy = torch.randint(-3, 4, y.shape).float()
    wide = [t.detach().double().requires_grad_() for t in leaves]
    h = wide[0] @ wide[1]
    want = (h if activation is None else torch.relu(h)) @ wide[2]
    found = [y, *torch.autograd.grad(y, leaves, dy)]
    for got, exact in zip(
        found, [want, *torch.autograd.grad(want, wide, dy.double())], strict=True
    ):
        assert torch.equal(got.double(), exact)


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (3,), (4,), (0, 3), (1, 2, 4)])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_each_gradient_of_mlp_alone(needed, activation) -> None:
    torch.manual_seed(0)
    sizes = ((3, 7, 6), (6, 8), (8,), (8, 5), (5,))
    tensors = [torch.randn(size, dtype=torch.float64) for size in sizes]
    given = [t.requires_grad_() if i in needed else t for i, t in enumerate(tensors)]
    leaves = [given[i] for i in needed]
    dy = torch.randn(3, 7, 5, dtype=torch.float64)
    got, want = (
        torch.autograd.grad(fuseline.mlp(*given, activation, impl=impl), leaves, dy)
        for impl in ("auto", "eager")
    )
    for found, expected in zip(got, want, strict=True):
        torch.testing.assert_close(found, expected)


def test_compiled_as_eager() -> None:
    torch.manual_seed(0)
    args = [torch.randn(size) for size in ((4, 6), (6, 8), (8,), (8, 5), (5,))]
    compiled = torch.compile(fuseline.mlp, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*args), fuseline.mlp(*args))


@pytest.mark.parametrize("activation", ["gelu", "gelu_none"])
@pytest.mark.parametrize("impl", ["auto", "aten", "onednn"])
@pytest.mark.parametrize("dims", [13, 64])
def test_any_number_of_dimensions(dims, impl, activation) -> None:
    """OneDNN, by which torch computes GELU on a CPU, takes twelve."""
    torch.manual_seed(0)
    x, w1, b1, w2, b2 = (torch.randn(size) for size in ((3, 7), (7, 8), (8,), (8, 5), (5,)))
    want = fuseline.mlp(x.requires_grad_(), w1, b1, w2, b2, activation, impl="aten")
    deep = x.detach().view(*(1,) * (dims - 2), 3, 7).requires_grad_()
    found = fuseline.mlp(deep, w1, b1, w2, b2, activation, impl=impl)
    assert found.shape == (*deep.shape[:-1], 5)
    torch.testing.assert_close(found.view(3, 5), want)
    dy = torch.randn(3, 5)
    (dx,) = torch.autograd.grad(found, deep, dy.view(found.shape))
    torch.testing.assert_close(dx.view(3, 7), torch.autograd.grad(want, x, dy)[0])
