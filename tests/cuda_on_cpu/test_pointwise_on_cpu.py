"""Elementwise operators on inputs that lie anyhow, without copies, as a GPU runs them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import permutations

import pytest
import torch
from cuda_on_cpu.calls import F64, NAMES, library_fixture, wide
from cuda_on_cpu.sources import CUDA, CXX
from torch import Tensor

from fuseline.ops.pointwise_chain.reference import longdouble as chain_longdouble

pytestmark = [
    pytest.mark.skipif(not CXX, reason="no C++ compiler"),
    pytest.mark.skipif(CUDA is None, reason="no headers of CUDA"),
]

chain = library_fixture("chain")
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
    for rows, n in ((5, 3), (70, 8), (40, 19), (9, 128), (3, 1637)):
        yield laid((rows, n), (n + 5, 1), dtype, 3)
        yield laid((rows, n), (n + 8, 1), dtype)
        yield laid((rows, n), (4 * n, 4), dtype)
        yield laid((rows, n), (0, 1), dtype)
        yield laid((rows, n), (1, 0), dtype)
        yield laid((rows, n), (1, rows), dtype, 1)
    for order in permutations(range(4)):
        yield torch.randn([2, 5, 3, 33], dtype=F64).to(dtype)[:, :, :, 1:].permute(order)
        yield torch.randn([2, 5, 3, 33], dtype=F64).to(dtype).permute(order)


def run(library, name: str, inputs: Sequence[Tensor], to: Tensor, *more: int) -> int:
    """Let kernels write `to`; 0, or what they refuse. Nothing beside it is written."""
    strides = [torch.tensor(t.stride()) for t in (*inputs, to)]
    tensors = [*inputs, to, torch.tensor(to.shape), *strides]
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    function = getattr(library, f"{name}_{NAMES[to.dtype]}")
    function.restype = ctypes.c_int64
    return function(*pointers, *map(ctypes.c_int64, (to.dim(), *more)))


def result_of(x: Tensor, offset: int = 0) -> tuple[Tensor, Tensor]:
    """Return what lies as torch.empty_like(x), and the memory around it."""
    like = torch.empty_like(x)
    room = torch.full((x.numel() + 64,), 7.0, dtype=x.dtype)
    return room.as_strided(x.shape, like.stride(), 32 + offset), room


def written(library, name: str, inputs: Sequence[Tensor], *more: int, offset: int = 0) -> Tensor:
    """The result that lies as the last input does, whatever the order of threads."""
    found = []
    for backwards in (0, 1):
        to, room = result_of(inputs[-1], offset)
        assert run(library, name, inputs, to, *more, backwards) == 0
        begin = 32 + offset
        assert (room[:begin] == 7).all()
        assert (room[begin + to.numel() :] == 7).all()
        found.append(to)
    assert torch.equal(*found)
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
    assert run(chain, "forward", [x], torch.empty(x.shape), *FEW, 0) == 1
