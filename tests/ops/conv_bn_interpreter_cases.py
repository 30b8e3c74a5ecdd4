"""Triton kernels of conv_bn on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_convolutions_triton.py in a process of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.budgets import keeps_the_budget
from ops.convolutions import LAST
from torch import Tensor

import fuseline
from fuseline import table
from fuseline.ops.conv_bn import impl_triton

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
