"""fuseline.patch changes no result: norms, near norms and norms at times, called in every way."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
import torch
from ops.norm_variants import BAD, GOOD, C, cases, plain
from torch import Tensor
from torch.nn import Module

import fuseline
from fuseline.core import native

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)
CASES = cases()
# The norm as they are; what they read is watched.
WATCHED = {
    "scaled once", "first eps alone", "other when cast", "float", "a list it reads",
    "eps of the dtype",
}  # fmt: skip
SHAPES = [
    (C,), (5, C), (C, C), (1, C), (0, C), (2, C, C), (2, C, 9), (2, 16, C), (1, 1, C), (2, C, 3, C),
    (3, C, C, C), (2, 3, 5, C), (2, C, 4, 4), (1, 2, 1, 3, C), (2, 2, 2, 2, 2, C), (40, C), (C, 1),
    (700, C), (300, 1, C), (1, 900, C),
]  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
CASTS = [None, torch.bfloat16, torch.float16]


def outcome(module: Module, x: Tensor, to: torch.dtype | None) -> Any:
    """Return a module's result, or the type of what it raises; random numbers as the first time."""
    torch.default_generator.manual_seed(1)  # torch.manual_seed formats its callers, for CUDA
    try:
        with torch.autocast("cpu", to, enabled=to is not None):
            y = module(x)
    except Exception as error:
        return type(error)
    return y[0] if isinstance(y, tuple) else y


def assert_same(got: Any, wanted: Any, x: Tensor) -> None:
    if not isinstance(wanted, Tensor):
        assert got is wanted, f"{got} instead of {wanted}"
        return
    assert isinstance(got, Tensor), got
    eps = torch.finfo(torch.float32 if x.dtype == torch.float64 else x.dtype).eps
    torch.testing.assert_close(got, wanted, rtol=8 * eps, atol=16 * eps, equal_nan=True)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_patch_changes_no_result(name: str, training: bool) -> None:
    own = CASES[name]().train(training)
    patched = copy.deepcopy(own)
    fuseline.patch(patched, impl="cpu")
    for mode, dtype in product((training, not training), DTYPES):
        for module in (own, patched):
            module.train(mode).to(dtype)
        shapes = SHAPES if dtype == torch.float32 else random.sample(SHAPES, 4)
        for shape, to in product(shapes, CASTS):
            x = (torch.randn(shape) * 3).to(dtype)
            x[..., 0] *= 50
            with torch.set_grad_enabled(mode):
                wanted = outcome(own, x.clone(), to)
                assert_same(outcome(patched, x.clone(), to), wanted, x)


@pytest.mark.parametrize("name", GOOD)
def test_the_norm_is_served(name: str) -> None:
    norm = CASES[name]()
    report = fuseline.patch(norm, impl="cpu")
    assert len(report.replaced) == 1, str(report)
    assert not report.partly
    for training, shape in product((True, False), ((C,), (5, C), (1, 2, C), (2, 3, 5, C))):
        norm.train(training)(torch.randn(shape))
    (calls,) = fuseline.patch_status(norm).modules
    assert (calls.served, calls.own) == (8, {})


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_norm_is_not_served_what_it_differs_in(name: str) -> None:
    norm = CASES[name]()
    report = fuseline.patch(norm, impl="cpu")
    assert report.kept or report.partly or name in WATCHED, str(report)


def test_an_attribute_that_changes_ends_the_proof() -> None:
    norm, x = CASES["scaled once"](), torch.randn(3, C)
    fuseline.patch(norm)
    y = norm(x)
    norm.by = 3.0
    torch.testing.assert_close(norm(x), 3 * y)
    (calls,) = fuseline.patch_status(norm).modules
    assert (calls.served, calls.own) == (1, {"its by was changed after patch": 1})
    norm.by, norm.eps = 1.0, 0.5
    torch.testing.assert_close(norm(x), plain(norm, x))
    norm.weight = torch.nn.Parameter(torch.rand(C))
    torch.testing.assert_close(norm(x), plain(norm, x))
    norm.eps = torch.tensor(0.25)
    torch.testing.assert_close(norm(x), plain(norm, x))
    (calls,) = fuseline.patch_status(norm).modules
    assert calls.own["its eps was changed after patch"] == 3


def test_a_list_that_is_written_to_ends_the_proof() -> None:
    norm, x = CASES["a list it reads"](), torch.randn(3, C)
    fuseline.patch(norm)
    norm(x)
    norm.by[0] = 3.0
    torch.testing.assert_close(norm(x), 3 * plain(norm, x))
    (calls,) = fuseline.patch_status(norm).modules
    assert (calls.served, calls.own) == (1, {"its by was changed after patch": 1})


def test_a_callable_that_may_change_cannot_be_watched() -> None:
    ((_, _, why),) = fuseline.patch(CASES["a callable with state"]()).kept
    assert why == "its scale is a Scale, on which its results may depend"


@pytest.mark.parametrize("layout", ["sliced", "channels last"])
def test_layouts(layout: str) -> None:
    x = torch.randn(2, 3, 4, 2 * C)[..., ::2]
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    for name in ("plain", f"other when {layout}"):
        norm = CASES[name]()
        wanted = norm(x)
        fuseline.patch(norm, impl="cpu")
        torch.testing.assert_close(norm(x), wanted)


def test_the_status_says_what_was_served_and_why_not() -> None:
    net = torch.nn.Sequential(torch.nn.RMSNorm(C), torch.nn.GroupNorm(1, C))
    assert fuseline.patch_status(net).modules == ()
    report = fuseline.patch(net, impl="cpu")
    assert "in training it is the norm of x of 2 dimensions alone" in str(report)
    net(torch.randn(3, C))
    net(torch.randn(3, C, C))
    said = str(fuseline.patch_status(net)).splitlines()
    assert said == [
        "2 patched modules served 3 eager calls",
        "  GroupNorm: 1 calls of 1 modules to their own forward: not proven: x of 3 dimensions, "
        "torch.float32, in training",
    ]


@pytest.mark.parametrize("size", [2000, 4096])
def test_where_no_square_was_proven_none_is_served(size: int) -> None:
    norm = CASES["plain"]()
    norm.weight = torch.nn.Parameter(torch.rand(size))
    fuseline.patch(norm)
    for rows in (3, size, 5):
        x = torch.randn(rows, size)
        torch.testing.assert_close(norm(x), plain(norm, x), rtol=1e-5, atol=1e-5)
    (calls,) = fuseline.patch_status(norm).modules
    assert calls.served == 2
    assert list(calls.own.values()) == [1]


MODES: dict[str, Callable[[], Any]] = {
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "meta": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "a float64 default": lambda: default_dtype(torch.float64),
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("mode", MODES)
def test_patch_inside_a_mode(mode: str) -> None:
    net = torch.nn.Sequential(torch.nn.LayerNorm(C), torch.nn.RMSNorm(C), CASES["plain"]())
    wanted = copy.deepcopy(net)
    before = torch.get_rng_state()
    with MODES[mode]():
        report = fuseline.patch(net, impl="cpu")
        assert len(report.replaced) == 3, str(report)
        assert not report.partly
    assert torch.equal(torch.get_rng_state(), before)
    x = torch.randn(3, C)
    torch.testing.assert_close(net(x), wanted(x))
    assert [m.served for m in fuseline.patch_status(net).modules] == [1, 1, 1]


def test_a_default_device_that_is_set() -> None:
    net = torch.nn.Sequential(torch.nn.RMSNorm(C))
    torch.set_default_device("meta")
    try:
        assert len(fuseline.patch(net).replaced) == 1
    finally:
        torch.set_default_device(None)
