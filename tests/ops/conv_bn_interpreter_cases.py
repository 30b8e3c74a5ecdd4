"""Triton kernels of conv_bn on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_convolutions_triton.py in a process of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.budgets import keeps_the_budget
from ops.convolutions import LAST, error
from torch import Tensor

import fuseline
from fuseline import table
from fuseline.ops.conv_bn import impl_fold, impl_triton, op

SPEC = table.load()["conv_bn"]

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu", "few_programs")


def drawn(
    dtype: torch.dtype, channels: int, size: int, kind: torch.dtype, norm: bool = True
) -> dict[str, Any]:
    """Arguments in training; x and weight channels_last."""
    x, weight = torch.randn(3, 8, size, size + 1), torch.randn(channels, 8, 3, 3) / 8
    images = {"x": x, "weight": weight}
    vectors = [torch.randn(channels).to(kind) if norm else None for _ in range(2)]
    return {
        **{n: t.to(dtype).contiguous(memory_format=LAST) for n, t in images.items()},
        "bias": None,
        **dict(zip(("bn_weight", "bn_bias"), vectors, strict=True)),
        **dict.fromkeys(("running_mean", "running_var")),
        "training": True,
        "momentum": 0.1,
        "eps": 1e-5,
        "stride": [1, 1],
        "padding": [0, 0],
        "dilation": [1, 1],
        "groups": 1,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("channels", "size"), [(1, 5), (20, 13), (131, 4)])
def test_within_the_budget(channels: int, size: int, dtype: torch.dtype) -> None:
    kind = dtype if channels == 131 else torch.float32
    inputs = drawn(dtype, channels, size, kind, norm=channels != 20) | {"relu": channels != 1}
    keeps_the_budget(SPEC, "triton", inputs)


def test_a_mean_of_many_spreads_and_nan() -> None:
    rows = torch.randn(500, 24) + torch.linspace(-300, 300, 24)
    mean, var, rstd = impl_triton._statistics(rows, 1e-5, None)
    exact = rows.double()
    eps, spread = torch.finfo(torch.float32).eps, exact.std(0)
    # A running mean is rounded at each of 8 steps; the squares about it are off by as many parts of
    # the mean in the spread (Chan, Golub, LeVeque 1983).
    assert ((mean - exact.mean(0)).abs() <= 4 * eps * exact.mean(0).abs()).all()
    limit = eps * (2 + exact.mean(0).abs() / spread)
    assert ((var / exact.var(0) - 1).abs() <= limit).all()
    assert ((rstd / (exact.var(0, correction=0) + 1e-5).rsqrt() - 1).abs() <= limit).all()
    inputs = drawn(torch.float32, 16, 5, torch.float32) | {"relu": True}
    inputs["x"][0, 0, 0, 0] = torch.nan
    y = fuseline.conv_bn(**inputs, impl="triton")
    assert y.isnan().all()


def test_it_is_what_auto_takes_and_what_it_leaves() -> None:
    inputs = drawn(torch.float32, 16, 5, torch.float32) | {"relu": True}
    assert fuseline.explain_choice(fuseline.conv_bn, **inputs).fwd.impl == "triton"

    def refused(**change: Tensor) -> str:
        told = fuseline.explain_choice(fuseline.conv_bn, **{**inputs, **change})
        return dict(told.fwd.others)["triton"]

    plain = {n: inputs[n].contiguous() for n in ("x", "weight")}
    assert "channels_last" in refused(**plain)
    wide = {n: t.double() for n, t in inputs.items() if isinstance(t, Tensor)}
    assert "float64" in refused(**wide)


FORMS = (torch.contiguous_format, LAST)
TINY = 2.0**-25  # half of float16's smallest number


def vectors_of(channels: int, kind: torch.dtype) -> list[Tensor | None]:
    """Random bias, weight and bias of the norm, mean and variance, of many sizes."""
    drawn = [torch.randn(channels) * torch.logspace(-2, 2, channels) for _ in range(4)]
    return [t.to(kind) for t in (*drawn, torch.logspace(-6, 4, channels).roll(3))]


def exactly(weight: Tensor, vectors: list[Tensor | None], eps: float) -> tuple[Tensor, Tensor]:
    wide = [None if t is None else t.double() for t in (weight, *vectors)]
    return op._by_torch(weight.double(), *wide, eps)


def assert_rounded(found: Tensor, wanted: Tensor, terms: Tensor) -> None:
    """Of fp32 arithmetic on terms as large as these, then rounded once."""
    finite = wanted.isfinite() & (wanted.abs() < torch.finfo(found.dtype).max)
    limit = 3 * torch.finfo(torch.float32).eps * terms
    if found.dtype != torch.float32:
        limit = limit + torch.finfo(found.dtype).eps / 2 * (wanted.abs() + limit)
        limit = limit + (TINY if found.dtype == torch.float16 else 0.0)
    assert ((found.double() - wanted).abs() <= limit)[finite].all()
    rest = (t[~finite] for t in (found, wanted.to(found.dtype)))
    torch.testing.assert_close(*rest, rtol=0, atol=0, equal_nan=True)


def assert_folded(
    weight: Tensor, vectors: list[Tensor | None], eps: float, dtype: torch.dtype
) -> None:
    made, shift = impl_fold.folded(weight, vectors, eps, dtype)
    assert made.dtype == shift.dtype == dtype
    assert made.stride() == weight.stride()
    exact, at = exactly(weight, vectors, eps)
    assert_rounded(made, exact, exact.abs())
    bias, w, b, mean, var = (0.0 if t is None else t.double() for t in vectors)
    w = 1.0 if vectors[1] is None else w
    terms = (abs(bias) + abs(mean)) * abs(w) * (var + eps) ** -0.5 + abs(b)
    assert_rounded(shift, at, terms)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (20, 3, 7, 7), (131, 5, 1, 1), (6, 65, 3, 3)])
def test_what_is_folded(
    shape: tuple[int, ...], dtype: torch.dtype, form: torch.memory_format
) -> None:
    for own, kind in {(dtype, dtype), (dtype, torch.float32), (torch.float32,) * 2}:
        weight = torch.randn(shape).to(own).contiguous(memory_format=form)
        vectors = vectors_of(shape[0], kind)
        assert_folded(weight, vectors, 1e-5, dtype)
        assert_folded(weight, [None] * 3 + vectors[3:], 1e-3, dtype)
        assert_folded(weight, [None, *vectors[1:]], 1.0, dtype)


@pytest.mark.parametrize("eps", [0.0, 1e-300, 1e-5])
def test_statistics_that_are_no_numbers(eps: float) -> None:
    weight = torch.randn(9, 4, 3, 3)
    weight[:, 0, 0, 0] = 0.0
    vectors: Any = vectors_of(9, torch.float32)
    vectors[4][:5] = torch.tensor([torch.nan, torch.inf, 0.0, -1.0, -torch.inf])
    vectors[3][5:7] = torch.tensor([torch.inf, torch.nan])
    given = (weight, *vectors, eps)
    for found, wanted in zip(impl_fold.folded(weight, vectors, eps, torch.float32),
                             op._by_torch(weight, *given), strict=True):  # fmt: skip
        torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("relu", [True, False])
def test_inference_is_folded_by_one_kernel(relu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, launch = [], impl_fold.launch

    def launched(kernel: Any, *args: Any) -> None:
        ran.append(kernel)
        launch(kernel, *args)

    monkeypatch.setattr(impl_fold, "launch", launched)
    names = ("bias", "bn_weight", "bn_bias", "running_mean", "running_var")
    given = {"x": torch.randn(3, 8, 6, 7), "weight": torch.randn(10, 4, 3, 3)}
    given |= {n: torch.randn(10) for n in names}
    given["running_var"] = given["running_var"].abs() + 0.5
    wide = {n: t.double() for n, t in given.items()}
    h = torch.conv2d(wide["x"], wide["weight"], wide["bias"], groups=2)
    y = torch.batch_norm(h, *(wide[n] for n in names[1:]), False, 0.0, 1e-5, False)
    wanted = y.relu() if relu else y
    spread = {n: given[n].repeat_interleave(2)[::2] for n in names}
    last = given["weight"].contiguous(memory_format=LAST)
    apart = given["weight"].repeat_interleave(2, 3)[..., ::2]  # left to torch
    for change, count in (({}, 1), (spread, 2), ({"weight": last}, 3), ({"weight": apart}, 3)):
        found = fuseline.conv_bn(**{**given, **change}, groups=2, relu=relu)
        # 36 products of folded weights, and the shift, each off by a few roundings.
        assert error(found, wanted) <= 8
        assert ran == [impl_fold._fold_kernel] * count
