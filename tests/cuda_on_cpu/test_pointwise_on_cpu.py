"""Elementwise operators on inputs that lie anyhow, without copies, as a GPU runs them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
import pytest
import torch
from cuda_on_cpu.calls import BF16, F32, F64, NAMES, library_fixture, rows, wide
from cuda_on_cpu.sources import CUDA, CXX
from torch import Tensor

from fuseline.ops.bias_gelu.reference import longdouble as gelu_longdouble
from fuseline.ops.horizontal_reduction_pointwise.reference import longdouble as sum_cos_longdouble
from fuseline.ops.horizontal_reduction_reduction.reference import longdouble as sum_amax_longdouble
from fuseline.ops.pointwise_chain.reference import longdouble as chain_longdouble

pytestmark = [
    pytest.mark.skipif(not CXX, reason="no C++ compiler"),
    pytest.mark.skipif(CUDA is None, reason="no headers of CUDA"),
]

chain, gelu, gradients = map(library_fixture, ("chain", "gelu", "gradients"))
ALL = {**NAMES, torch.float16: "f16"}
FEW, MANY = (1, 1 << 30), (10**6, 1 << 30)  # multiprocessors, elements of a launch
PIECES = (1, 90)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def laid(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, offset: int = 0):
    """Random numbers of which the first lies `offset` elements behind a multiple of 16 bytes."""
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    return torch.randn(offset + last + 1, dtype=F64).to(dtype).as_strided(shape, strides, offset)


def layouts(dtype: torch.dtype) -> Iterator[Tensor]:
    """Dense from any address, gaps, steps, what is repeated, permutations; short rows and long."""
    for n in (1, 2, 7, 8, 700, 1025):
        yield from (laid((n,), (1,), dtype, offset) for offset in (0, 1))
        yield laid((n,), (3,), dtype)
        yield laid((n,), (0,), dtype, 1)
    for count, n in ((5, 3), (70, 8), (40, 19), (9, 128), (3, 1637)):
        yield laid((count, n), (n + 5, 1), dtype, 3)
        yield laid((count, n), (n + 8, 1), dtype)
        yield laid((count, n), (4 * n, 4), dtype)
        yield laid((count, n), (0, 1), dtype)
        yield laid((count, n), (1, 0), dtype)
        yield laid((count, n), (1, count), dtype, 1)
    for order in permutations(range(4)):
        yield torch.randn([2, 5, 3, 33], dtype=F64).to(dtype)[:, :, :, 1:].permute(order)
        yield torch.randn([2, 5, 3, 33], dtype=F64).to(dtype).permute(order)


def run(function, tensors: Sequence[Tensor | None], laid: Sequence[Tensor], *more: int) -> int:
    """Call it with the tensors, sizes and strides of `laid`, and numbers; return its result."""
    numbers = [torch.tensor(laid[0].shape), *(torch.tensor(t.stride()) for t in laid)]
    pointers = [ctypes.c_void_p(None if t is None else t.data_ptr()) for t in (*tensors, *numbers)]
    function.restype = ctypes.c_int64
    return function(*pointers, *map(ctypes.c_int64, (laid[0].dim(), *more)))


def result_of(x: Tensor, offset: int = 0) -> tuple[Tensor, Tensor]:
    """Return what lies as torch.empty_like(x), and the memory around it."""
    room = torch.full((x.numel() + 64,), 7.0, dtype=x.dtype)
    return room.as_strided(x.shape, torch.empty_like(x).stride(), 32 + offset), room


def assert_nothing_beside(room: Tensor, numel: int, offset: int = 0) -> None:
    assert (room[: 32 + offset] == 7).all()
    assert (room[32 + offset + numel :] == 7).all()


def written(
    library, name: str, inputs: Sequence[Tensor], *more: int, offset: int = 0, like: int = -1
) -> Tensor:
    """The result that lies as an input does, whatever the order of threads."""
    found = []
    for backwards in (0, 1):
        to, room = result_of(inputs[like], offset)
        function = getattr(library, f"{name}_{ALL[to.dtype]}")
        assert run(function, [*inputs, to], [*inputs, to], *more, backwards) == 0
        assert_nothing_beside(room, to.numel(), offset)
        found.append(to)
    assert torch.equal(*(t.nan_to_num(7.0) for t in found))
    return found[0]


def assert_chain(y: Tensor, dx: Tensor, dy: Tensor, x: Tensor) -> None:
    limit = 5 * torch.finfo(x.dtype).eps
    (right,) = chain_longdouble("fwd", None, wide(x))
    assert (abs(wide(y) - right) <= limit * abs(right)).all()
    (right,) = chain_longdouble("bwd", wide(dy), wide(x))
    assert (abs(wide(dx) - right) <= limit * abs(wide(dy)) * (1 + abs(wide(x)))).all()


@pytest.mark.parametrize("size", [FEW, MANY, PIECES])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_chain_of_any_layout(chain, dtype, size) -> None:
    """By packs of 16 bytes, of 4, in pieces. Gradients come contiguous, as x, in steps, or as one
    element for all.
    """
    for x in layouts(dtype):
        y = written(chain, "forward", [x], *size)
        dense = torch.randn(x.shape, dtype=F64).to(dtype)
        steps = torch.randn(*x.shape, 2, dtype=F64).to(dtype)[..., 0]
        one = torch.randn((), dtype=F64).to(dtype).expand(x.shape)
        for dy in (dense, x.detach().flip(0) if x.dim() == 1 else x, steps, one):
            dx = written(chain, "backward", [dy, x], *size)
            assert_chain(y, dx, dy, x)
    assert torch.equal(written(chain, "forward", [x], *size, offset=1), y)  # no result of torch's


@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_chain_of_long_runs(chain, dtype) -> None:
    """Dense ones at multiples of 16 bytes, of any length, by several packs a thread. Angles near
    and far, of which bfloat16's have a way of their own.
    """
    for numel in (9000, 9001, 9007):
        x, dy = (laid((numel,), (1,), dtype) for _ in "ab")
        x *= 30
        x[::5] *= 1e5
        y, dx = written(chain, "forward", [x], *FEW), written(chain, "backward", [dy, x], *FEW)
        assert_chain(y, dx, dy, x)


def test_more_axes_than_kernels_have(chain) -> None:
    x = torch.randn(4, 4, 4, 4, 4)[:, ::2, ::2, ::2, ::2].transpose(0, 1)
    y = torch.empty(x.shape)
    assert run(chain.forward_f32, [x, y], [x, y], *FEW, 0) == 1


def assert_gelu(y: Tensor, x: Tensor, bias: Tensor, tanh: int) -> None:
    """Digits where the result is small."""
    (right,) = gelu_longdouble("fwd", None, wide(x), wide(bias), "tanh" if tanh else "none")
    limit = {F32: 8, F64: 8, BF16: 0.51}[x.dtype] * torch.finfo(x.dtype).eps
    tiny = torch.finfo(x.dtype).tiny * 2.0**24
    assert (abs(wide(y) - right) <= limit * (abs(right) + tiny)).all()


def gelu_gradients(
    library, dy: Tensor, x: Tensor, bias: Tensor, tanh: int, needs: tuple[int, int]
) -> list[Tensor | None]:
    """dx and dbias, if they are asked for, which the order of threads may not change."""
    function, found = getattr(library, f"backward_{NAMES[x.dtype]}"), []
    for backwards in (0, 1):
        dx, room = result_of(x)
        dbias = torch.full_like(bias, torch.nan)
        made = [t if need else None for t, need in zip((dx, dbias), needs, strict=True)]
        given = [dy, x]
        if run(function, [*given, bias, *made], [*given, dx], tanh, backwards):
            given = [result_of(x)[0].copy_(t) for t in given]
            assert run(function, [*given, bias, *made], [*given, dx], tanh, backwards) == 0
        assert_nothing_beside(room, x.numel())
        found.append(made)
    for a, b in zip(*found, strict=True):
        assert a is None or torch.equal(a, b)
    return found[0]


def assert_gelu_gradients(
    library, dy: Tensor, x: Tensor, bias: Tensor, tanh: int, needs, of_terms: bool = False
) -> None:
    """By the largest of each or, since slopes may be small and sums cancel, of their terms."""
    exact = gelu_longdouble("bwd", wide(dy), wide(x), wide(bias), "tanh" if tanh else "none")
    sizes = [abs(right).max() for right in exact]
    if of_terms:
        terms = abs(wide(dy))
        sizes = [terms.max(), terms.sum(tuple(range(x.dim() - 1))).max()]
    got = gelu_gradients(library, dy, x, bias, tanh, needs)
    for mine, right, size in zip(got, exact, sizes, strict=True):
        if mine is not None:
            assert (abs(wide(mine) - right) <= 6 * torch.finfo(x.dtype).eps * size).all()


@pytest.mark.parametrize("sms", [1, 10**6])
@pytest.mark.parametrize("tanh", [1, 0])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_gelu_of_any_layout(gelu, dtype, tanh, sms) -> None:
    for x in layouts(dtype):
        bias = rows((1, x.shape[-1]), dtype)[0] * 3
        y, room = result_of(x)
        function = getattr(gelu, f"forward_{NAMES[dtype]}")
        assert run(function, [x, bias, y], [x, y], sms, tanh, 0) == 0
        assert_nothing_beside(room, x.numel())
        assert_gelu(y, x, bias, tanh)


@pytest.mark.parametrize("tanh", [1, 0])
@pytest.mark.parametrize(("count", "n"), [(1200, 64), (40, 4096), (6000, 8), (301, 1000), (40, 64)])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_gelu_by_tiles(gelu, dtype, count, n, tanh) -> None:
    """Misaligned ones are left to the other kernels."""
    bias, function = rows((1, n), dtype)[0], getattr(gelu, f"tiles_{NAMES[dtype]}")
    for gap, offset in ((0, 0), (8, 8), (0, 1), (1, 0)):
        x, y = laid((count, n), (n + gap, 1), dtype, offset), torch.empty(count, n, dtype=dtype)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, bias, y)]
        done = function(*pointers, *map(ctypes.c_int64, (count, n, x.stride(0), tanh, 0)))
        assert done == (gap % 8 == offset % 8 == 0)
        if done:
            assert_gelu(y, x, bias, tanh)


@pytest.mark.parametrize("tanh", [1, 0])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_gelus_gradients_of_any_layout(gelu, dtype, tanh) -> None:
    """Those of y come contiguous, as x, in steps, or as one element for all."""
    for i, x in enumerate(layouts(dtype)):
        bias = rows((1, x.shape[-1]), dtype)[0]
        steps = torch.randn(*x.shape, 2, dtype=F64).to(dtype)[..., 0]
        one = torch.randn((), dtype=F64).to(dtype).expand(x.shape)
        needs = [(1, 1), (1, 0), (0, 1)][i % 3]
        for dy in (x, torch.randn(x.shape, dtype=F64).to(dtype), steps, one):
            assert_gelu_gradients(gelu, dy, x, bias, tanh, needs, of_terms=True)


# Parts of rows and of lines, of one kernel and of two; the last by lanes that are whole warps.
@pytest.mark.parametrize("tanh", [1, 0])
@pytest.mark.parametrize(
    "shape", [(3, 61), (300, 8), (5, 512), (400, 3), (1, 9001), (70, 1000), (90, 137)]
)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_gelus_gradients(gelu, dtype, shape, tanh) -> None:
    count, n = shape
    layouts = (laid(shape, (n, 1), dtype), laid(shape, (n + 3, 1), dtype, 1),
               laid(shape, (1, count), dtype), laid((4, *shape), (n, 4 * n, 1), dtype),
               laid((4, *shape), (n * count, 1, count), dtype))  # fmt: skip
    for i, x in enumerate(layouts):
        dy, bias = rows((1, x.numel()), dtype).view(x.shape), rows((1, n), dtype)[0]
        one = (1, 0) if i % 2 == tanh else (0, 1)  # the other one with the other formula
        for needs in ((1, 1), one):
            assert_gelu_gradients(gelu, dy, x, bias, tanh, needs)


def test_gelus_gradients_do_not_know_where_rows_begin(gelu) -> None:
    """Where kernels read by packs."""
    for dtype, shape in ((F32, (90, 512)), (BF16, (90, 1024))):
        x, bias = laid(shape, (shape[1], 1), dtype), rows((1, shape[1]), dtype)[0]
        misaligned = laid(shape, (shape[1] + 3, 1), dtype, 1).copy_(x)
        found = [gelu_gradients(gelu, x, t, bias, 1, (1, 1)) for t in (x, misaligned)]
        for a, b in zip(*found, strict=True):
            assert torch.equal(a, b)


def test_gelu_without_rows(gelu) -> None:
    x, bias, dbias = torch.empty(0, 64), torch.randn(64), torch.full((64,), torch.nan)
    for made in (x, None):
        assert run(gelu.backward_f32, [x, x, bias, made, dbias], [x, x, x], 1, 0) == 0
        assert not dbias.any()
    assert run(gelu.backward_f32, [x, x, bias, x, None], [x, x, x], 1, 0) == 0


def special(x: Tensor) -> Tensor:
    """With ties, NaNs and infinities, wherever it lies."""
    flat = x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)
    flat.mul_(4).round_().div_(4)
    for value, first in ((torch.nan, 3), (torch.inf, 50), (-torch.inf, 90)):
        flat[first::127] = value
    return x


def of_rows(x: Tensor) -> Iterator[Tensor]:
    """Random numbers, one a row: one after the other, in steps, the same for all, in any order."""
    shape = x.shape[:-1]
    yield torch.randn(shape, dtype=F64).to(x.dtype)
    yield torch.randn(*shape, 3, dtype=F64).to(x.dtype)[..., 1]
    yield torch.randn((), dtype=F64).to(x.dtype).expand(shape)
    yield torch.randn(shape[::-1], dtype=F64).to(x.dtype).permute(tuple(range(len(shape)))[::-1])


def along_rows(t: Tensor, x: Tensor) -> Tensor:
    return t[..., None].expand(x.shape)


def assert_gradient(got: Tensor, right: np.ndarray, terms: np.ndarray) -> None:
    """Within two roundings of the terms; NaN and infinity where these are."""
    far = ~np.isfinite(right)
    assert np.array_equal(wide(got)[far], right[far], equal_nan=True)
    off = abs(wide(got) - np.where(far, 0, right))[~far]
    assert (off <= 2 * torch.finfo(got.dtype).eps * np.broadcast_to(terms, right.shape)[~far]).all()


def assert_sum_and_cos(library, x: Tensor, dcos: Tensor, dsum: Tensor, *size: int) -> None:
    dx = written(library, "sum_and_cos", [dcos, x, along_rows(dsum, x)], *size, like=1)
    with np.errstate(invalid="ignore"):
        (right,) = sum_cos_longdouble("bwd", (wide(dsum), wide(dcos)), wide(x))
    assert_gradient(dx, right, abs(wide(dsum))[..., None] + abs(wide(dcos)))


def assert_sum_and_amax(library, x: Tensor, dsum: Tensor, damax: Tensor, *size: int) -> None:
    amax = x.amax(-1)
    count = (x == amax[..., None]).sum(-1).double()
    given = [along_rows(t, x) for t in (dsum, damax, amax, count)]
    dx = written(library, "sum_and_amax", [x, *given], *size, like=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        (right,) = sum_amax_longdouble("bwd", (wide(dsum), wide(damax)), wide(x))
    assert_gradient(dx, right, (abs(wide(dsum)) + abs(wide(damax)))[..., None])


@pytest.mark.parametrize("size", [FEW, MANY, PIECES])
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_gradients_of_rows_of_any_layout(gradients, dtype, size) -> None:
    for i, x in enumerate(layouts(dtype)):
        special(x)
        *rows, steps, one, other = of_rows(x)
        steps_of_x = torch.randn(*x.shape, 2, dtype=F64).to(dtype)[..., 0]
        dcos = [torch.randn(x.shape, dtype=F64).to(dtype), steps_of_x, x.clone()][i % 3]
        for dsum, damax in ((rows[0], steps), (one, other)):
            assert_sum_and_cos(gradients, x, dcos, dsum, *size)
            assert_sum_and_amax(gradients, x, dsum, damax, *size)


# A pack in one row, in two, in more; one row; one element a row; tails.
@pytest.mark.parametrize(
    "shape", [(90, 104), (101, 103), (1000, 8), (1100, 9), (2500, 4), (3001, 3), (9001, 1), (9001,)]
)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_gradients_of_dense_rows(gradients, dtype, shape) -> None:
    for offset in (0, 3):
        x = special(laid(shape, torch.empty(shape).stride(), dtype, offset))
        dsum, damax, *_ = of_rows(x)
        dcos = torch.randn(shape, dtype=F64).to(dtype)
        assert_sum_and_cos(gradients, x, dcos, dsum, *FEW)
        assert_sum_and_amax(gradients, x, dsum, damax, *FEW)


# Pairs of columns, single ones, in slices; less than a warp, and few, which other kernels have.
@pytest.mark.parametrize(
    ("outer", "n", "inner"),
    [(2, 61, 100), (3, 130, 33), (1, 300, 64), (2, 4, 1301), (1, 900, 16), (3, 5, 40)],
)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_gradients_of_columns(gradients, dtype, outer, n, inner) -> None:
    """Rows that lie side by side: of a dense x, of one with gaps, from odd addresses."""
    for gap, offset in ((0, 0), (8, 0), (1, 0), (2, 1)):
        strides = (n * (inner + gap), 1, inner + gap)
        x = special(laid((outer, inner, n), strides, dtype, offset))
        dcos = x.clone() if gap else torch.randn(x.shape, dtype=F64).to(dtype)
        for dsum, damax in zip(*(of_rows(x) for _ in "ab"), strict=True):
            assert_sum_and_cos(gradients, x, dcos, dsum, *FEW)
            assert_sum_and_amax(gradients, x, dsum, damax, *FEW)
