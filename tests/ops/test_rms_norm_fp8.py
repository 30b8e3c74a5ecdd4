"""What is peculiar to rms_norm_fp8: every e4m3 value and tie, saturation, no gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.instruction_sets import BUILT, for_instruction_set
from torch.library import opcheck

import fuseline
from fuseline.core import native
from fuseline.ops.rms_norm_fp8.op import CONTRACT

OPS = torch.ops.fuseline
FP8 = torch.float8_e4m3fn
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def inputs(device: str = "cpu", *shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = shape or (3, 32)
    scale = torch.tensor([0.013], device=device)
    return torch.randn(shape, device=device), torch.randn(shape[-1], device=device), scale


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype == FP8 and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def probe() -> tuple[torch.Tensor, torch.Tensor]:
    """Values around each e4m3 value and each tie between two, and what the nearest even one is."""
    finite = torch.arange(127, dtype=torch.uint8).view(FP8).float()
    ties = (finite[1:] + finite[:-1]) / 2
    even = torch.where(torch.arange(126) % 2 == 0, finite[:-1], finite[1:])
    beside = (torch.nextafter(ties, ties * 0), torch.nextafter(ties, ties * 2))
    values = torch.cat((finite, ties, *beside, torch.tensor([449.0, 1e9, torch.inf])))
    wanted = torch.cat((finite, even, finite[:-1], finite[1:], torch.full((3,), 448.0)))
    return torch.cat((values, -values)), torch.cat((wanted, -wanted))


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for name, schema in CONTRACT.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


@pytest.mark.parametrize(
    ("device", "impl"),
    [
        ("cpu", "auto"),
        ("cpu", "eager"),
        *(pytest.param("cuda", i, marks=pytest.mark.gpu) for i in ("cuda", "triton", "eager")),
    ],
)
def test_every_value_and_every_tie_is_rounded_to_the_nearest_even(device: str, impl: str) -> None:
    values, wanted = (t.to(device) for t in probe())
    # Rows of ones with eps 0 are their own norm, so what is rounded is the weight itself.
    ones, scale = torch.ones(2, len(values), device=device), torch.ones((), device=device)
    y = fuseline.rms_norm_fp8(ones, values, scale, 0.0, impl=impl)
    assert same(y, wanted.to(FP8).expand(2, -1).contiguous())
    values[5] = torch.nan
    assert fuseline.rms_norm_fp8(ones, values, scale, 0.0, impl=impl).float().isnan()[:, 5].all()


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set_rounds_alike(isa: str) -> None:
    code = """
import sys, torch
from ops.instruction_sets import for_instruction_set
from ops.test_rms_norm_fp8 import test_every_value_and_every_tie_is_rounded_to_the_nearest_even as t
t("cpu", "auto")
"""
    for_instruction_set(isa, code)


@pytest.mark.parametrize("device", DEVICES)
def test_the_value_is_divided_not_multiplied_by_an_inverse(device: str) -> None:
    """The quotient of these is a tie, exactly; their product with 1 / scale falls beside it."""
    scales = torch.arange(3, 2000, 2, device=device)
    ties = 4.75 * scales.float()  # between 4.5 and 5, whose last bit is 0
    for scale, value in zip(scales.float(), ties, strict=True):
        y = fuseline.rms_norm_fp8(torch.ones(1, 1, device=device), value[None], scale, 0.0)
        assert y.item() == 5.0


@pytest.mark.parametrize("device", DEVICES)
def test_any_scale_divides_as_fp32_does(device: str) -> None:
    """Beside every tie and at the ends of fp32; scales as they come, and 0, Inf and NaN."""
    info = torch.finfo(torch.float32)
    ends = torch.tensor([0.0, 1e-45, info.tiny, info.max, torch.inf, torch.nan])
    ends = torch.cat((ends, -ends))
    quotients, infinity = probe()[0], torch.tensor(torch.inf)
    random = torch.randint(-(2**31), 2**31, (1000,)).to(torch.int32).view(torch.float32)
    for scale in torch.cat((ends, random)):
        near = quotients * scale
        beside = (torch.nextafter(near, infinity), torch.nextafter(near, -infinity))
        values = torch.cat((near, *beside, ends))
        ones = torch.ones(1, len(values), device=device)
        y = fuseline.rms_norm_fp8(ones, values.to(device), scale.to(device), 0.0)[0].cpu()
        wanted = (values / scale).clamp(-448.0, 448.0).to(FP8)
        nan = wanted.float().isnan()
        assert torch.equal(y.float().isnan(), nan)
        assert torch.equal(y.view(torch.uint8)[~nan], wanted.view(torch.uint8)[~nan]), scale


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck_and_compile(device: str) -> None:
    x, weight, scale = inputs(device, 2, 3, 32)
    for op in (OPS.rms_norm_fp8, OPS._rms_norm_fp8):
        for w in (weight, None):
            opcheck(op, (x, w, scale, 1e-5))
    torch._dynamo.reset()
    compiled = torch.compile(fuseline.rms_norm_fp8, fullgraph=True)
    assert same(compiled(x, weight, scale, 1e-5), fuseline.rms_norm_fp8(x, weight, scale, 1e-5))


def test_vmap_over_each_argument() -> None:
    x, weight, scale = inputs("cpu", 4, 3, 8)
    weights, scales = torch.randn(4, 8), torch.rand(4) + 0.1
    for dims, args in (
        ((0, None, None), (x, weight, scale)),
        ((0, 0, None), (x, weights, scale)),
        ((None, None, 0), (x[0], weight, scales)),
        ((0, 0, 0), (x, weights, scales)),
    ):

        def one(i: int, dims: Any = dims, args: Any = args) -> torch.Tensor:
            own = (a if d is None else a[i] for d, a in zip(dims, args, strict=True))
            return fuseline.rms_norm_fp8(*own, 1e-5)

        got = torch.func.vmap(lambda *t: fuseline.rms_norm_fp8(*t, 1e-5), in_dims=dims)(*args)
        wanted = torch.stack([one(i).float() for i in range(4)])
        torch.testing.assert_close(got.float(), wanted, rtol=0.07, atol=0.01)  # a step at most


@pytest.mark.parametrize("impl", ["auto", "eager"])
def test_a_gradient_is_refused_by_name(impl: str) -> None:
    x, weight, scale = inputs()
    call = fuseline.rms_norm_fp8
    for name, args in (
        ("x", (x.clone().requires_grad_(), weight, scale)),
        ("weight", (x, weight.clone().requires_grad_(), scale)),
        ("scale", (x, weight, scale.clone().requires_grad_())),
    ):
        with pytest.raises(RuntimeError, match=f"{name} requires grad.*forward only"):
            call(*args, impl=impl)
        with torch.no_grad():
            assert same(call(*args, impl=impl), call(x, weight, scale, impl=impl))
        with pytest.raises(RuntimeError, match="forward only"):
            OPS.rms_norm_fp8(*args, 1e-5)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward only"):
        call(torch.autograd.forward_ad.make_dual(x, x), weight, scale)
    with pytest.raises(RuntimeError, match="forward only"):
        torch.func.grad(lambda t: call(t, weight, scale).float().sum())(x)


def test_rows_beyond_the_range_of_fp32_squares_keep_their_bits() -> None:
    x, weight, scale = inputs("cpu", 5, 61)
    plain = fuseline.rms_norm_fp8(x, weight, scale, 0.0)
    for factor in (2.0**100, 2.0**-100):
        assert same(fuseline.rms_norm_fp8(x * factor, weight, scale, 0.0), plain)


@pytest.mark.parametrize("device", DEVICES)
def test_raw_operators_refuse_what_the_kernels_cannot_read(device: str) -> None:
    x, weight, scale = inputs(device)
    for args, words in (
        ((x.double(), None, scale), "x must be float32"),
        ((x, weight[:3], scale), "weight has shape"),
        ((x, weight, scale.half()), "scale must be"),
        ((x, weight, scale.expand(2)), "scale has shape"),
        ((x, weight, scale[:0]), "scale has shape"),
    ):
        with pytest.raises(RuntimeError, match=words):
            OPS._rms_norm_fp8(*args, 1e-5)
