"""What is peculiar to layer_norm_fp8: every e4m3 value and tie, means far from 0, no gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.instruction_sets import BUILT, for_instruction_set
from ops.norms_fp8 import same
from ops.test_rms_norm_fp8 import FP8, probe
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.testing.oracle.accuracy import errors, over_budget

RAW = torch.ops.fuseline
SPEC = table.load()["layer_norm_fp8"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def inputs(n: int, dtype: Any = torch.float32, device: str = "cpu") -> dict[str, Any]:
    """Return rows that lie apart, and parameters, from N(0, 1)."""
    x, weight, bias = (torch.randn(*s, device=device).to(dtype) for s in ((5, n + 6), (n,), (n,)))
    scale = torch.tensor([0.013], device=device)
    return {"x": x[:, 6:], "weight": weight, "bias": bias, "scale": scale, "eps": 1e-5}


def wrong(given: dict[str, Any], y: torch.Tensor) -> str | None:
    figures = errors(SPEC, given, "fwd", {"out0": y})["out0"]
    return over_budget(SPEC.budget, y.dtype, "fwd", figures, None)


@pytest.mark.parametrize("impl", ["auto", "eager"])
@pytest.mark.parametrize("device", DEVICES)
def test_every_value_and_every_tie_is_rounded_to_the_nearest_even(device: str, impl: str) -> None:
    values, wanted = (t.to(device) for t in probe())
    # A row of equal elements has no deviation, so what is rounded is the bias.
    ones = torch.ones(2, len(values), device=device)
    y = fuseline.layer_norm_fp8(ones, None, values, ones[0, 0], 1.0, impl=impl)
    # -0 added to a deviation of 0 is 0.
    assert torch.equal(y.float(), wanted.to(FP8).float().expand(2, -1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
def test_values_are_the_nearest(device: str, dtype: torch.dtype) -> None:
    for n in (1, 3, 16, 17, 127, 577, 1001, 4097, 16384, 16384 + 7):
        given = inputs(n, dtype, device)
        y = fuseline.layer_norm_fp8(**given)
        assert y.is_contiguous()
        assert wrong(given, y) is None, n


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set(isa: str) -> None:
    code = """
import torch
from ops.test_layer_norm_fp8 import test_values_are_the_nearest as values
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    values("cpu", dtype)
"""
    for_instruction_set(isa, code)


@pytest.mark.parametrize("device", DEVICES)
def test_a_mean_of_many_spreads_costs_no_digits(device: str) -> None:
    for n in (61, 700, 17000):
        given = inputs(n, device=device)
        given["x"] = given["x"] * 16 + 2.0**27  # whose ULP is 16
        assert given["x"].unique().numel() > 3
        assert wrong(given, fuseline.layer_norm_fp8(**given)) is None


def test_rows_beyond_the_range_of_fp32_squares_keep_their_bits() -> None:
    given = {**inputs(61), "eps": 0.0}
    plain = fuseline.layer_norm_fp8(**given)
    for factor in (2.0**100, 2.0**-100):
        assert same(fuseline.layer_norm_fp8(**{**given, "x": given["x"] * factor}), plain)


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck_and_compile(device: str) -> None:
    args = (*inputs(32, torch.bfloat16, device).values(),)
    suffix = "" if device == "cpu" else "__triton"
    for name in ("layer_norm_fp8", "_layer_norm_fp8"):
        opcheck(getattr(RAW, name + suffix), args)
    torch._dynamo.reset()
    compiled = torch.compile(fuseline.layer_norm_fp8, fullgraph=True)
    assert same(compiled(*args), fuseline.layer_norm_fp8(*args))


def test_vmap_over_each_argument() -> None:
    x, weight, bias = torch.randn(4, 3, 8), torch.randn(8), torch.randn(8)
    scale, eps = torch.tensor([0.013]), 1e-5
    for dims, args in (
        ((0, None, None, None), (x, weight, bias, scale)),
        ((0, 0, 0, None), (x, torch.randn(4, 8), torch.randn(4, 8), scale)),
        ((None, None, None, 0), (x[0], weight, bias, torch.rand(4) + 0.1)),
        ((0, None, 0, 0), (x, weight, torch.randn(4, 8), torch.rand(4) + 0.1)),
    ):
        got = torch.func.vmap(lambda *t: fuseline.layer_norm_fp8(*t, eps), in_dims=dims)(*args)
        for i in range(4):
            one = [a if d is None else a[i] for a, d in zip(args, dims, strict=True)]
            wanted = fuseline.layer_norm_fp8(*one, eps).float()
            torch.testing.assert_close(got[i].float(), wanted, rtol=0.07, atol=0.01)


@pytest.mark.parametrize("impl", ["auto", "eager"])
def test_a_gradient_is_refused_by_name(impl: str) -> None:
    given = inputs(32)
    for name in ("x", "weight", "bias", "scale"):
        wanting = {**given, name: given[name].clone().requires_grad_()}
        with pytest.raises(RuntimeError, match=f"{name} requires grad.*forward only"):
            fuseline.layer_norm_fp8(**wanting, impl=impl)
        with pytest.raises(RuntimeError, match="forward only"):
            RAW.layer_norm_fp8(*wanting.values())


def test_raw_operators_refuse_what_the_kernels_cannot_read() -> None:
    given = inputs(32)
    for change, words in (
        ({"x": given["x"].double()}, "x must be float32"),
        ({"bias": given["bias"][:3]}, "bias has shape"),
        ({"scale": given["scale"].half()}, "scale must be"),
        ({"scale": given["scale"].expand(2)}, "scale has shape"),
        ({"scale": given["scale"][:0]}, "scale has shape"),
    ):
        with pytest.raises(RuntimeError, match=words):
            RAW._layer_norm_fp8(*{**given, **change}.values())
