"""The product and its activations' gradients on the CPU; needs TRITON_INTERPRET=1.

Run by test_product_triton.py in a process of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.products import OPS, arguments, error, oracle, results

from fuseline.primitives.triton.products.activation import ACTS, act_grad
from fuseline.primitives.triton.products.product import product
from fuseline.primitives.triton.products.tiles import HALF, IEEE

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu", "few_programs")

SIZES = [(1, 1, 1), (7, 64, 130), (130, 257, 7), (64, 130, 257), (257, 7, 64), (65, 9, 0)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def formula(act: str, h: torch.Tensor) -> torch.Tensor:
    """act(h), differentiable."""
    if act.startswith("gelu"):
        return F.gelu(h, approximate="tanh" if act == "gelu_tanh" else "none")
    return torch.relu(h) if act == "relu" else h


def integers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-3, 4, shape).to(dtype)


def laid(layout: str, batches: int, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """(batches, rows, cols) of small integers as a caller may have it."""
    if layout == "transposed":
        return integers(batches, cols, rows, dtype=dtype).mT
    if layout == "odd":
        return integers(batches, rows, cols + 1, dtype=dtype)[..., 1:]
    if layout == "steps":
        return integers(batches, rows, 2 * cols, dtype=dtype)[..., ::2]
    if layout == "heads":
        return integers(rows, batches, cols, dtype=dtype).transpose(0, 1)
    if layout == "one":
        return integers(1, rows, cols, dtype=dtype).expand(batches, rows, cols)
    return integers(batches, rows, cols, dtype=dtype)


def exact(a: Any, b: Any, bias: Any, **given: Any) -> None:
    """Sums of small integers are exact in fp32, and in half types if they stay below 2^8."""
    y, h = product(a, b, bias, "relu", save_h=True, **given)
    expected = a.double() @ b.double() + (0.0 if bias is None else bias.double())
    assert torch.equal(h, expected.to(h.dtype))
    assert torch.equal(y, expected.relu().to(y.dtype))
    assert y.is_contiguous()
    assert h.is_contiguous()


def near(
    got: torch.Tensor, eager: torch.Tensor, expected: torch.Tensor, floor: float = 1.0
) -> None:
    """Within twice eager's own error, or `floor` eps of the largest where eager is luckier."""
    assert error(got, expected) <= max(2 * error(eager, expected), floor)


# Of sums, whose terms come in another order than eager's: as in the specs of products.
SUMS = {torch.float32: 4.0, torch.float16: 2.0, torch.bfloat16: 2.0}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_integers_are_exact(size: Any, dtype: torch.dtype, traced: bool) -> None:
    m, n, k = size
    a, b = integers(m, k, dtype=dtype), integers(n, k, dtype=dtype).mT
    wrap = (lambda kernel: kernel) if traced else None
    exact(a, b, integers(n, dtype=dtype), wrap=wrap)
    exact(integers(k, m, dtype=dtype).mT, b, None, wrap=wrap)


@pytest.mark.parametrize("right", ["transposed", "odd", "steps", "heads", "one"])
@pytest.mark.parametrize("left", ["dense", "transposed", "odd", "steps", "heads", "one"])
def test_layouts(left: str, right: str) -> None:
    a, b = laid(left, 3, 33, 40, torch.float16), laid(right, 3, 40, 17, torch.float16)
    exact(a, b, None)
    exact(a, b[1], integers(17, dtype=torch.float16))
    exact(a[1], b[2], None)


@pytest.mark.parametrize("tile", [*HALF.tiles, IEEE.tiles[0]], ids=str)
def test_tiles(tile: Any) -> None:
    dtype = torch.float32 if tile in IEEE.tiles else torch.bfloat16
    a, b = integers(2, 300, 70, dtype=dtype), integers(2, 70, 530, dtype=dtype)
    exact(a, b, integers(530, dtype=dtype), tile=tile)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_activations(dtype: torch.dtype, act: str) -> None:
    a, b, bias = (torch.randn(*s).to(dtype) for s in ((70, 61), (61, 40), (40,)))
    y, h = product(a, b, bias, act, save_h=act != "none")
    before = a.double() @ b.double() + bias.double()
    eager = a @ b + bias
    near(y, formula(act, eager), formula(act, before))
    if h is not None:
        near(h, eager, before)


def test_what_is_no_number_stays_where_it_is() -> None:
    a, b = torch.randn(40, 20), torch.randn(20, 30)
    a[7, 3], b[4, 9] = float("nan"), float("inf")
    for act in ACTS:
        y, _ = product(a, b, None, act)
        expected = formula(act, a.double() @ b.double())
        assert torch.equal(y.isnan(), expected.isnan())
        assert torch.equal(y.isposinf(), expected.isposinf())


def test_empty() -> None:
    for m, n, batches in ((0, 3, ()), (3, 0, ()), (2, 3, (0,))):
        y, h = product(torch.ones(*batches, m, 5), torch.ones(*batches, 5, n), save_h=True)
        assert y.shape == h.shape == (*batches, m, n)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 513), (45, 300), (300, 7)], ids=str)
def test_gradients(shape: Any, dtype: torch.dtype, act: str) -> None:
    dy, h = torch.randn(shape[0], shape[1] + 8).to(dtype)[:, 8:], torch.randn(shape).to(dtype)
    saved = None if act == "none" else formula(act, h) if act == "relu" else h
    g, dbias = act_grad(dy, saved, act, True)
    expected, eager = (
        torch.autograd.grad(formula(act, x), x, dy.to(x.dtype))[0]
        for x in (h.double().requires_grad_(), h.clone().requires_grad_())
    )
    # GELU's derivative is some ten operations in float32, which no half type shows.
    near(g, eager, expected, 2.0 if dtype == torch.float32 else 1.0)
    near(dbias, eager.sum(0), expected.sum(0), SUMS[dtype])
    alone, none = act_grad(dy, saved, act, False)
    assert torch.equal(alone, g)
    assert none is None


def test_gradients_of_relu_at_its_ends() -> None:
    y = torch.tensor([[0.0, -0.0, 1.0, float("inf"), float("nan")]])
    g, _ = act_grad(torch.full_like(y, 3.0), y, "relu", False)
    assert torch.equal(g, torch.ops.aten.threshold_backward(torch.full_like(y, 3.0), y, 0.0))


# Batches, M, N, K; whether b has the batches, and lies transposed.
CALLS = [
    ((), 33, 40, 17, False, True), ((), 1, 17, 5, False, False), ((3,), 5, 7, 9, False, False),
    ((2, 2), 9, 8, 24, True, True), ((2,), 4, 8, 0, True, False), ((), 0, 3, 4, False, True),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_operators(op: str, dtype: torch.dtype, call: Any) -> None:
    batches, m, n, k, batched, turned = call
    right = (*(batches if batched else ()), *((n, k) if turned else (k, n)))
    a, b, bias = (torch.randn(shape).to(dtype) for shape in ((*batches, m, k), right, (n,)))
    dy = torch.randn(n, m, *batches).to(dtype).permute(*range(2, 2 + len(batches)), 1, 0)
    for approximate in ("tanh", "none") if op == "matmul_add_gelu" else ("",):
        args = arguments(op, a, b.mT if turned else b, bias, approximate)
        expected, eager = oracle(op, args, dy), results(op, args, dy, impl="eager")
        for got, its, wanted in zip(
            results(op, args, dy, impl="triton"), eager, expected, strict=True
        ):
            assert got.dtype == dtype
            assert got.shape == wanted.shape
            near(got, its, wanted, SUMS[dtype])
