"""Gated operators, y = f(a) * b, on inputs that lie anyhow, as a GPU runs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from cuda_on_cpu.calls import F64, library_fixture, wide
from cuda_on_cpu.sources import CUDA, CXX
from cuda_on_cpu.test_pointwise_on_cpu import (
    ALL,
    FEW,
    MANY,
    PIECES,
    assert_nothing_beside,
    laid,
    layouts,
    result_of,
    run,
    written,
)
from torch import Tensor

from fuseline.ops.geglu.reference import longdouble as geglu_longdouble
from fuseline.ops.swiglu.reference import longdouble as swiglu_longdouble

pytestmark = [
    pytest.mark.skipif(not CXX, reason="no C++ compiler"),
    pytest.mark.skipif(CUDA is None, reason="no headers of CUDA"),
]

gated = library_fixture("gated")
GATES: dict[str, Callable[..., Any]] = {
    "swiglu": swiglu_longdouble,
    "geglu_tanh": geglu_longdouble,
    "geglu_none": partial(geglu_longdouble, approximate="none"),
}
# Where |a| is large an ULP of a small result is less than a rounding of the exponent.
LIMIT = {"swiglu": 4, "geglu_tanh": 8, "geglu_none": 8}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def drawn(like: Tensor) -> Tensor:
    return torch.randn(like.shape, dtype=F64).to(like.dtype)


def halves(packed: Tensor) -> tuple[Tensor, Tensor]:
    a, b = packed.chunk(2, -1)
    return a, b


def assert_near(got: Tensor, right: Any, size: Any, limit: int) -> None:
    """Within so many eps of the size, of subnormal numbers so many of the least."""
    info = torch.finfo(got.dtype)
    assert (abs(wide(got) - right) <= limit * info.eps * np.maximum(size, info.tiny)).all()


def assert_gate(name: str, y: Tensor, a: Tensor, b: Tensor) -> None:
    (right,) = GATES[name]("fwd", None, wide(a), wide(b))
    assert_near(y, right, abs(right), LIMIT[name])


def assert_gradients(name: str, got: tuple[Tensor, ...], a: Tensor, b: Tensor, dy: Tensor) -> None:
    """By the terms, since the slope of f is 0 somewhere."""
    exact = GATES[name]("bwd", wide(dy), wide(a), wide(b))
    terms = abs(wide(dy)) * abs(wide(b)), abs(wide(dy)) * abs(wide(a))
    for mine, right, size in zip(got, exact, terms, strict=True):
        assert_near(mine, right, size, 4)


def gradients(library, name: str, a: Tensor, b: Tensor, dy: Tensor, *more: int):
    """da and db, which lie as torch.empty_like(a)."""
    found = []
    for backwards in (0, 1):
        (da, room), (db, other) = result_of(a), result_of(a)
        function = getattr(library, f"{name}_backward_{ALL[a.dtype]}")
        assert run(function, [a, b, dy, da, db], [a, b, dy, da], *more, 0, backwards) == 0
        for memory in (room, other):
            assert_nothing_beside(memory, a.numel())
        found.append((da, db))
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)
    return found[0]


def packed_gradients(library, name: str, ab: Tensor, dy: Tensor, *more: int):
    """Both halves of what lies as torch.empty_like(ab)."""
    found = []
    for backwards in (0, 1):
        dab, room = result_of(ab)
        function = getattr(library, f"{name}_backward_{ALL[ab.dtype]}")
        tensors = [*halves(ab), dy, *halves(dab)]
        assert run(function, tensors, tensors[:4], *more, 1, backwards) == 0
        assert_nothing_beside(room, ab.numel())
        found.append(dab)
    assert torch.equal(*found)
    return halves(found[0])


@pytest.mark.parametrize("size", [FEW, MANY, PIECES])
@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", GATES)
def test_apart_in_any_layout(gated, name, dtype, size) -> None:
    """b as a, contiguous, or in steps; dy contiguous, as a, or one element for all."""
    for i, a in enumerate(layouts(dtype)):
        steps = torch.randn(*a.shape, 2, dtype=F64).to(dtype)[..., 0]
        b = [a.clone(), drawn(a), steps][i % 3]
        assert_gate(name, written(gated, f"{name}_forward", [a, b], *size, like=0), a, b)
        one = torch.randn((), dtype=F64).to(dtype).expand(a.shape)
        for dy in (drawn(a), a, one):
            assert_gradients(name, gradients(gated, name, a, b, dy, *size), a, b, dy)


@pytest.mark.parametrize("size", [FEW, MANY, PIECES])
@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", GATES)
def test_packed_in_any_layout(gated, name, dtype, size) -> None:
    """Halves of even and odd lengths, so that rows of the gradients begin anywhere."""
    for ab in layouts(dtype):
        if ab.shape[-1] % 2:
            continue
        a, b = halves(ab)
        y = torch.empty(a.shape, dtype=dtype)
        function = getattr(gated, f"{name}_forward_{ALL[dtype]}")
        assert run(function, [a, b, y], [a, b, y], *size, 0) == 0
        assert_gate(name, y, a, b)
        steps = torch.randn(*a.shape, 2, dtype=F64).to(dtype)[..., 0]
        for dy in (drawn(a), steps):
            found = packed_gradients(gated, name, ab, dy, *size)
            assert_gradients(name, found, a, b, dy)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", GATES)
def test_long_rows(gated, name, dtype) -> None:
    """By packs of 16 bytes: dense runs, several a thread; halves at multiples of 16, and not."""
    for count, n in ((1, 9001), (9, 1024), (70, 130), (3, 3001)):
        a, b, dy = (laid((count, n), (n, 1), dtype) for _ in "abc")
        assert_gate(name, written(gated, f"{name}_forward", [a, b], *FEW), a, b)
        assert_gradients(name, gradients(gated, name, a, b, dy, *FEW), a, b, dy)
        ab = laid((count, 2 * n), (2 * n, 1), dtype)
        found = packed_gradients(gated, name, ab, dy, *FEW)
        assert_gradients(name, found, *halves(ab), dy)
