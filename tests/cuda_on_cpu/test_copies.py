"""Copies between layouts, as a GPU makes them."""

from __future__ import annotations

import ctypes
import random

import pytest
import torch
from cuda_on_cpu.calls import library_fixture
from cuda_on_cpu.sources import CUDA, CXX
from torch import Tensor

pytestmark = [
    pytest.mark.skipif(not CXX, reason="no C++ compiler"),
    pytest.mark.skipif(CUDA is None, reason="no headers of CUDA"),
]

layouts = library_fixture("layouts")
DTYPES = {2: torch.int16, 4: torch.int32, 8: torch.int64}
TORCH, DIRECT, TILES = range(3)


def values(shape, dtype) -> Tensor:
    return torch.randint(-30000, 30000, shape).to(dtype)


def copied(library, x: Tensor, order=None, offset: int = 0) -> int:
    """Copy x to dense memory of dimensions in `order`; nothing beside it is written."""
    order = order or list(range(x.dim()))
    size = x.element_size()
    room = torch.full((x.numel() + 64,), 7, dtype=x.dtype)
    start, end = 24 + offset, 24 + offset + x.numel()
    y = room[start:end].view([x.shape[d] for d in order])
    y = y.permute([order.index(d) for d in range(x.dim())])
    numbers = [torch.tensor(v) for v in (x.shape, x.stride(), y.stride())]
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, y, *numbers)]
    function = getattr(library, f"copy_{size}")
    function.restype = ctypes.c_int64
    way = function(*pointers, ctypes.c_int64(x.dim()))
    assert way >= 0
    if way == TORCH:
        assert (room == 7).all()
    else:
        assert torch.equal(y, x)
    assert (room[:start] == 7).all()
    assert (room[end:] == 7).all()
    return way


def laid(shape, order, dtype, gap: int = 0, step: int = 1, offset: int = 0) -> Tensor:
    """A tensor whose dimensions lie in `order`, with every `step`-th element of its rows."""
    stored = [shape[d] for d in order]
    n = stored[-1]
    stored[-1] = n * step + gap
    memory = values((offset + torch.Size(stored).numel(),), dtype)[offset:].view(stored)
    return memory[..., : n * step : step].permute([order.index(d) for d in range(len(order))])


# Sizes and the order of dimensions in memory of what is read.
TRANSPOSED = [
    ((65, 1030), (1, 0)), ((9, 7300), (1, 0)), ((700, 100), (1, 0)), ((301, 257), (1, 0)),
    ((5, 170, 133), (0, 2, 1)), ((33, 70, 65), (2, 1, 0)), ((3, 57, 14, 33), (0, 2, 3, 1)),
    ((2, 24, 150, 10), (0, 2, 3, 1)), ((32768, 2), (1, 0)), ((21847, 3), (1, 0)),
    ((3641, 9, 2), (2, 1, 0)), ((9, 3, 64, 70), (3, 1, 2, 0)), ((1200, 1101), (1, 0)),
]  # fmt: skip


@pytest.mark.parametrize("size", DTYPES)
@pytest.mark.parametrize(("shape", "order"), TRANSPOSED, ids=str)
def test_copies_by_tiles(layouts, shape, order, size) -> None:
    ways = set()
    for gap, offset, written in ((0, 0, 0), (1, 0, 1), (0, 1, 0), (3, 3, 1), (4, 2, 2)):
        x = laid(shape, order, DTYPES[size], gap, offset=offset)
        ways.add(copied(layouts, x, offset=written))
    assert TILES in ways


@pytest.mark.parametrize("size", DTYPES)
def test_copies_of_any_layout(layouts, size) -> None:
    """Few dimensions of any size and order: most of them by threads that write what they read."""
    seed = torch.seed()
    print(seed)  # of a failure
    draw = random.Random(seed)
    ways = []
    for _ in range(150):
        dims = draw.randrange(1, 5)
        shape = [draw.choice((1, 2, 3, 7, 8, 9, 33, 64, 100)) for _ in range(dims)]
        shape[draw.randrange(dims)] *= draw.randrange(1, 12)
        if torch.Size(shape).numel() > 1 << 18:
            continue
        orders = [draw.sample(range(dims), dims) for _ in range(2)]
        gap, offset, written = (draw.choice((0, 0, 1, 2, 4)) for _ in range(3))
        step = draw.choice((1, 1, 2, 3))
        x = laid(shape, orders[0], DTYPES[size], gap, step, offset)
        ways.append(copied(layouts, x, draw.choice((None, orders[0], orders[1])), written))
    assert ways.count(TORCH) * 2 < len(ways)


@pytest.mark.parametrize("size", DTYPES)
def test_copies_of_rows(layouts, size) -> None:
    """Steps and gaps, of rows of every length, and what is repeated."""
    for n in (5, 64, 100, 256, 257, 700, 2047, 2048, 2049, 5003):
        for gap, step, offset in ((2, 1, 0), (1, 1, 1), (0, 2, 0), (1, 3, 1), (4, 4, 2)):
            x = laid((2, 9, n), (0, 1, 2), DTYPES[size], gap, step, offset)
            assert copied(layouts, x, offset=offset) == DIRECT
            one = copied(layouts, x[0, 0, 1:], offset=offset)
            assert one == (TORCH if step == 1 else DIRECT)
            assert copied(layouts, x[:, ::2].transpose(0, 1), offset=1) == DIRECT
        x = values((3, n), DTYPES[size])
        assert copied(layouts, x[:, None].expand(3, 33, n)) == DIRECT
        assert copied(layouts, x[:, :1].expand(3, 99)) == DIRECT


def test_copies_that_are_left_to_torch(layouts) -> None:
    """Nothing, one element, one run, too many dimensions, and blocks with little to do."""
    x = values((4, 3, 5, 2, 6), torch.int32)
    many = values((20, 20, 20, 3), torch.int32)[..., :2].permute(2, 1, 0, 3)
    for t in (x[:0], x[:1, :1, :1, :1, :1], x, x[1:], x[:, :2].permute(4, 3, 2, 1, 0), many):
        assert copied(layouts, t) == TORCH
    small = values((9, 100, 4, 4), torch.int16)[..., :3]
    assert copied(layouts, small.permute(1, 0, 2, 3)[:, :, ::2]) == DIRECT
    assert copied(layouts, values((70, 3, 80, 2), torch.int16)[:, :, ::2].transpose(1, 3)) == DIRECT
