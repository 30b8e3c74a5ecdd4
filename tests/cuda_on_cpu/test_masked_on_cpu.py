"""masked_softmax's CUDA kernels on a CPU: masks of any layout, what is hidden, gradients."""

from __future__ import annotations

import ctypes
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from cuda_on_cpu.calls import BF16, F32, F64, NAMES, call, library_fixture, wide
from cuda_on_cpu.sources import CUDA, CXX
from torch import Tensor

from fuseline.ops.masked_softmax.reference import longdouble

USUAL, CLUSTERS, AGAIN, SHARED = range(4)
# How blocks share rows: by a cluster, a grid, a grid that reads again; pieces of a row, of a block;
# groups.
Sharing = tuple[int, int, int, int]
SHARINGS = ((0, 32, 2, 1), (1, 32, 1, 1), (1, 32, 3, 1), (2, 32, 2, 2))
WAYS = [(CLUSTERS, SHARINGS[0]), (AGAIN, SHARINGS[0]), *((SHARED, s) for s in SHARINGS)]
# Rows of a thread, part of a warp, of one, of blocks, and read again; whole 16-byte accesses and
# not.
LENGTHS = (1, 3, 8, 17, 61, 64, 130, 256, 512, 577, 1024, 1500, 1502, 2048, 5003, 8192, 20001)

masked = library_fixture("masked")
pytestmark = [
    pytest.mark.skipif(not CXX, reason="no C++ compiler"),
    pytest.mark.skipif(CUDA is None, reason="no headers of CUDA"),
]


def normal(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=F64).to(dtype)


def with_gap(x: Tensor, gap: int) -> Tensor:
    """NaN between rows, which begin an element off a multiple of 16 bytes."""
    if not gap:
        return x
    shape = (*x.shape[:-1], x.shape[-1] + gap)
    moved = torch.full((int(np.prod(shape)) + 1,), torch.nan, dtype=x.dtype)[1:].view(shape)
    return moved[..., : x.shape[-1]].copy_(x)


def some_hidden(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    mask = torch.randn(shape)
    return mask.masked_fill(torch.rand(shape) < 1 / 7, -torch.inf).to(dtype)


def kinds(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """Of masks."""
    return (dtype, F32) if dtype == BF16 else (dtype,)


def run(
    library: Any, x: Tensor, mask: Tensor | None = None, queries: int = 0, scale: float = 1.0,
    log: bool = False, way: int = USUAL, sharing: Sharing = SHARINGS[0],
) -> Tensor:  # fmt: skip
    """y, which the order of threads may not change; a mask of x's shape, however it lies."""
    *lead, n = x.shape
    *steps, last = (0,) * x.dim() if mask is None else mask.expand(x.shape).stride()
    places = [torch.tensor(t, dtype=torch.int64) for t in (lead, steps)]
    is_float = mask is not None and mask.dtype != x.dtype
    numbers = [len(lead), last, is_float, x.numel() // n, n, x.stride(-2)]
    numbers += [queries, scale, log, way, *sharing]
    found = []
    for backwards in (0, 1):
        y = torch.full(x.shape, 7.0, dtype=x.dtype)
        call(library, f"forward_{NAMES[x.dtype]}", [x, mask, y, *places], [*numbers, backwards])
        found.append(y)
    assert same(*found)
    return found[0]


def gradient(
    library: Any, dy: Tensor, y: Tensor, queries: int, scale: float, log: bool, way: int = USUAL,
    sharing: Sharing = SHARINGS[0],
) -> Tensor:  # fmt: skip
    n = y.shape[-1]
    dx = torch.full(y.shape, 7.0, dtype=y.dtype)
    numbers = [y.numel() // n, n, dy.stride(-2), queries, scale, log, way, *sharing, 0]
    call(library, f"backward_{NAMES[y.dtype]}", [dy, y, dx], numbers)
    return dx


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def hidden(shape: tuple[int, ...], queries: int) -> Tensor:
    """What causal hides of rows of matrices, of which the last may be there in part."""
    row = torch.arange(int(np.prod(shape[:-1]))).view(*shape[:-1], 1)
    visible = row % max(queries, 1) + 1 + shape[-1] - queries
    return (torch.arange(shape[-1]) >= visible) & bool(queries)


def right(
    x: Tensor, mask: Tensor | None, queries: int = 0, scale: float = 1.0, log: bool = False
) -> np.ndarray:
    added = np.zeros(x.shape) if mask is None else np.broadcast_to(wide(mask), x.shape)
    added = np.where(hidden(x.shape, queries).numpy(), -np.inf, added)
    with np.errstate(all="ignore"):
        return longdouble("fwd", None, wide(x), added, False, scale, log)[0]


def assert_close(found: Tensor, exact: np.ndarray) -> None:
    """Within roundings of a row's largest number; NaN and infinities where they are to be."""
    got, finite = wide(found), np.isfinite(exact)
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    assert np.array_equal(np.isinf(got), np.isinf(exact))
    size = abs(np.where(finite, exact, 0)).max(-1, keepdims=True)
    off = abs(np.where(finite, got, 0) - np.where(finite, exact, 0))
    assert (off <= 8 * torch.finfo(found.dtype).eps * size).all()


def assert_gradient(
    dx: Tensor, dy: Tensor, y: Tensor, queries: int, scale: float, log: bool
) -> None:
    d, v = wide(dy), wide(y)
    terms = d if log else d * v
    factor = np.exp(v) if log else v
    total = terms.sum(-1, keepdims=True)
    dz = d - factor * total if log else factor * (d - total)
    unseen = hidden(y.shape, queries)
    assert not dx[unseen].any()
    size = (abs(d) + abs(terms).sum(-1, keepdims=True)) * (1 if log else factor)
    off = abs(wide(dx) - scale * np.where(unseen.numpy(), 0, dz))
    assert (off <= 8 * torch.finfo(dx.dtype).eps * abs(scale) * size).all()


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_every_length(masked, dtype, n) -> None:
    """With and without a mask and causal: right, and the same bits from any address."""
    torch.manual_seed(n)
    shape = (2, 3, n)
    mask = some_hidden((3, n), dtype)
    for given, *how in (
        (None, 0, 0.5, False),
        (None, 3, 0.125, True),
        (mask, 0, -1.5, True),
        (mask, 3, 1.0, False),
    ):
        x, dy = normal(shape, dtype), normal(shape, dtype)
        y = run(masked, x, given, *how)
        assert_close(y, right(x, given, *how))
        of = y.nan_to_num(0.0, None, -torch.inf)
        dx = gradient(masked, dy, of, *how)
        assert_gradient(dx, dy, of, *how)
        for gap in (3, 8):
            assert same(run(masked, with_gap(x, gap), given, *how), y)
            assert same(gradient(masked, with_gap(dy, gap), of, *how), dx)


@pytest.mark.parametrize(("way", "sharing"), WAYS)
@pytest.mark.parametrize(
    ("dtype", "n"), [(F32, 61), (BF16, 2048), (F32, 9000), (BF16, 9001), (F64, 9001)], ids=str
)
def test_kernels_of_longer_rows(masked, dtype, n, way, sharing) -> None:
    """Columns that are another block's, or another piece's, count from the row's beginning."""
    torch.manual_seed(n)
    shape, queries = (3, n), 2 + n // 3 * 2  # two thirds are hidden, whole blocks' columns
    mask = some_hidden((1, n), kinds(dtype)[-1])
    for given, gap, log in ((None, 0, True), (mask, 0, False), (mask, 3, True)):
        x, dy = (with_gap(normal(shape, dtype), gap) for _ in range(2))
        how = queries, 0.5, log
        y = run(masked, x, given, *how, way, sharing)
        assert_close(y, right(x, given, *how))
        assert_gradient(gradient(masked, dy, y, *how, way, sharing), dy, y, *how)
        y = run(masked, x, given, 0, 0.5, log, way, sharing)
        assert_close(y, right(x, given, 0, 0.5, log))


@pytest.mark.parametrize(("dtype", "n"), [(F32, 9000), (BF16, 9001), (F64, 9001)], ids=str)
def test_a_row_does_not_know_how_many_blocks_share_it(masked, dtype, n) -> None:
    """The same bits by clusters of 8, 4 and 2 blocks, and by one block."""
    torch.manual_seed(n)
    shape, how = (3, n), (2 + n // 3 * 2, 0.5)
    mask = some_hidden((1, n), kinds(dtype)[-1])
    x, dy = (normal(shape, dtype) for _ in range(2))
    found = []
    for each in (1, 2, 4, 8):
        sharing = (0, 8, each, 1)
        y = run(masked, x, mask, *how, False, SHARED, sharing)
        found.append((y, gradient(masked, dy, y, *how, False, SHARED, sharing)))
    assert_close(found[0][0], right(x, mask, *how))
    assert all(same(a, b) for again in found[1:] for a, b in zip(again, found[0], strict=True))


# Of (2, 3, 5, n): all of it, rows, columns, some of it.
MASKS = [(), (1,), (0,), (5, 0), (3, 1, 0), (2, 1, 1, 0), (2, 1, 5, 1), (2, 3, 5, 0), (1, 3, 5, 0)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_a_mask_of_any_layout(masked, dtype, shape) -> None:
    """At odd addresses, columns apart, transposed, dimensions in another order: the same bits."""
    torch.manual_seed(len(shape))
    for n, of in product((64, 70), kinds(dtype)):
        x = normal((2, 3, 5, n), dtype)
        mask = some_hidden(tuple(size or n for size in shape), of)
        y = run(masked, x, mask)
        assert_close(y, right(x, mask))
        apart = torch.full((*mask.shape, 2), torch.nan, dtype=of)[..., 0].copy_(mask)
        odd = torch.full((mask.numel() + 1,), torch.nan, dtype=of)[1:].view(mask.shape)
        layouts = [apart, odd.copy_(mask)]
        if mask.dim() > 1:
            layouts += [mask.transpose(d, -2).clone().transpose(d, -2) for d in (-1, 0)]
            layouts += [mask.transpose(d, -1).contiguous().transpose(d, -1) for d in (-2, 0)]
        assert all(same(run(masked, x, layout), y) for layout in layouts)


@pytest.mark.parametrize(("sizes", "strides", "dims"), [
    ((), (), 0),
    ((4, 7), (0, 0), 0),
    ((4, 7), (0, 3), 1),
    ((4, 7), (21, 3), 1),
    ((4, 7), (3, 0), 2),
    ((4, 1, 7, 1, 2), (28, 5, 4, 9, 2), 1),
    ((2, 3, 4, 5), (1, 2, 6, 24), 4),
    ((2, 3, 4, 5, 2), (1, 2, 6, 24, 500), -1),
])  # fmt: skip
def test_where_the_rows_of_a_mask_lie(masked, sizes, strides, dims) -> None:
    """Dimensions that go on are one, outer ones that are broadcast none, five too many."""
    place = masked.mask_place
    place.restype = ctypes.c_int64
    at = torch.zeros(1, dtype=torch.int64)
    as_c = [torch.tensor(t, dtype=torch.int64) for t in (sizes, strides)]
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*as_c, at)]
    for index, where in enumerate(np.ndindex(sizes)):
        numbers = ctypes.c_int64(len(sizes)), ctypes.c_int64(index)
        assert place(*pointers[:2], *numbers, pointers[2]) == dims
        if dims >= 0:
            assert at.item() == sum(i * s for i, s in zip(where, strides, strict=True))


def test_division(masked) -> None:
    divide = masked.divide
    divide.restype = ctypes.c_int64
    most = 2**63 - 1
    for by in (1, 2, 3, 7, 641, 2**31, 2**32 - 1, 2**32 + 1, 10**18, most):
        for number in (
            0,
            1,
            by - 1,
            by,
            2**31,
            2**53 + 1,
            most // by * by - 1,
            most // by * by,
            most,
        ):
            rest = ctypes.c_int64()
            found = divide(ctypes.c_int64(number), ctypes.c_int64(by), ctypes.byref(rest))
            assert (found, rest.value) == divmod(number, by)


@pytest.mark.parametrize("n", [4, 9, 70, 300, 2048])
@pytest.mark.parametrize("queries", [1, 4, 9, 70])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_what_causal_hides_does_not_matter(masked, dtype, queries, n) -> None:
    """Rows that see nothing included; a pair of elements may be read of which one is hidden."""
    torch.manual_seed(n)
    x, mask = normal((2, queries, n), dtype), normal((queries, n), dtype)
    unseen = hidden(x.shape, queries)
    for log, given in product((False, True), (None, mask)):
        y = run(masked, x, given, queries, 0.5, log)
        assert_close(y, right(x, given, queries, 0.5, log))
        for bad in (torch.nan, torch.inf):
            of = None if given is None else given.masked_fill(unseen[0], bad)
            assert same(run(masked, x.masked_fill(unseen, bad), of, queries, 0.5, log), y)


@pytest.mark.parametrize("n", [5, 40, 577, 1024])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_rows_that_torch_makes_nan(masked, dtype, n) -> None:
    """Of -Inf alone, with a NaN, with +Inf; and a scale that makes +Inf of what is not there."""
    torch.manual_seed(n)
    x, mask = normal((4, n), dtype), torch.zeros(4, n, dtype=dtype)
    mask[0], mask[1, 1], mask[2, 1], mask[3, 2:] = -torch.inf, torch.nan, torch.inf, -torch.inf
    for queries, log, scale in product((0, 4), (False, True), (1.0, -1.0, 0.0)):
        z = (x.double() * scale + mask).masked_fill(hidden(x.shape, queries), -torch.inf)
        want = (torch.log_softmax if log else torch.softmax)(z, -1)
        y = run(masked, x, mask, queries, scale, log)
        assert_close(y, want.numpy().astype(np.longdouble))


def test_a_row_with_one_element_far_above(masked) -> None:
    """Its sum rounds to 1, in whose digits the errors of a logarithm near 0 count."""
    for dtype, (n, height) in product((F32, F64), ((61, 12.0), (1027, 25.0), (300, 60.0))):
        x = normal((7, n), dtype)
        x[:, n - 8] += height
        exact = right(x, None, log=True)
        off = abs(wide(run(masked, x, log=True)) - exact)
        assert (off <= 2 * torch.finfo(dtype).eps * np.maximum(abs(exact), 1)).all()
