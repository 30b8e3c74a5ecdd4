"""Triton kernels of norms in float8_e4m3fn on the CPU; needs TRITON_INTERPRET=1 before triton is
imported. Run by test_norms_fp8_triton.py in a process of its own.
"""

from __future__ import annotations

import pytest
import torch
from ops.norms_fp8 import DTYPES, LEAST, OTHERS, call, given, same, wrong
from ops.test_layer_norm_fp8 import inputs
from ops.test_layer_norm_fp8 import wrong as wrong_layer
from ops.test_rms_norm_fp8 import FP8, probe

import fuseline

pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu")
each = pytest.mark.parametrize("op", OTHERS)
LONG = 16384 + 7


@each
@pytest.mark.parametrize("block", [None, 16, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_are_the_nearest(op, block, dtype):
    for n in (1, 3, 61, 1001, 4097, LONG):
        inputs = given(op, (5, n), dtype, block=block)
        outputs = call(op, inputs, "triton")
        assert wrong(op, inputs, outputs) is None, n
        assert all(map(same, outputs[2:], call(op, inputs)[2:]))


@each
@pytest.mark.parametrize("n", [300, LONG])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rows_out_of_range_beside_rows_within(op, n):
    for block in (None, 128):
        inputs = given(op, (6, n), torch.float32, eps=0.0, block=block)
        factors = torch.tensor([[1.0], [2.0**100], [2.0**-100], [1.0], [2.0**-60], [1.0]])
        rows = [name for name in ("x", "residual") if name in inputs]
        scaled = {**inputs, **{name: inputs[name] * factors for name in rows}}
        assert wrong(op, scaled, call(op, scaled, "triton")) is None


@each
@pytest.mark.parametrize("n", [300, LONG])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_zeros_nan_and_a_bound(op, n):
    inputs = given(op, (4, n), torch.float32, block=128)
    for name in ("weight", "bias"):
        if name in inputs:
            inputs[name][128:256] = 0.0
    inputs["x"][1, 7] = torch.nan
    y, scale = (t.float() for t in call(op, inputs, "triton")[:2])
    assert y[1].isnan().all()
    assert scale[1].isnan().all()
    rest = [0, 2, 3]
    assert (scale[rest, 1] == LEAST).all()
    assert (y[rest, 128:256] == 0.0).all()
    inputs["x"][1, 7] = 1.0
    bounded = {**inputs, "scale_ub": 1.5}
    assert wrong(op, bounded, call(op, bounded, "triton")) is None
    infinite = {**inputs, "weight": inputs["weight"].clone()}
    infinite["weight"][5] = torch.inf
    assert (call(op, infinite, "triton")[1][:, 0] == torch.inf).all()


@each
@pytest.mark.parametrize("block", [None, 128])
def test_parameters_of_another_kind(op, block):
    for kind in ("float32", "none"):
        inputs = given(op, (3, 301), torch.bfloat16, block=block)
        for name in ("weight", "bias"):
            if name in inputs:
                inputs[name] = torch.randn(301) if kind == "float32" else None
        assert wrong(op, inputs, call(op, inputs, "triton")) is None


@each
@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (2, 0, 61), (0,)])
def test_empty_tensors(op, shape):
    for block, count in ((None, 1), (16, -(-shape[-1] // 16))):
        y, scale, *rest = call(op, given(op, shape, torch.float32, block=block), "triton")
        assert y.shape == shape
        assert scale.shape == (*shape[:-1], count)
        assert (scale == LEAST).all()
        assert all(t.shape == shape for t in rest)


@pytest.mark.parametrize("n", [None, 40000])
def test_every_value_and_every_tie_of_a_given_scale(n):
    values, wanted = probe()
    if n:  # in blocks
        values, wanted = (t.repeat(n // len(t)) for t in (values, wanted))
    ones = torch.ones(2, len(values))
    y = fuseline.layer_norm_fp8(ones, None, values, torch.ones(()), 1.0, impl="triton")
    assert torch.equal(y.float(), wanted.to(FP8).float().expand(2, -1))  # but for the sign of 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_norm_by_a_given_scale(dtype):
    for n in (1, 3, 61, 1001, 4097, LONG):
        own = inputs(n, dtype)
        assert wrong_layer(own, fuseline.layer_norm_fp8(**own, impl="triton")) is None, n


@pytest.mark.parametrize("n", [0, 20000])  # whole rows, and in blocks
def test_any_scale_divides_as_fp32_does(n):
    """Beside every tie and at the ends of fp32; scales as they come, and 0, Inf and NaN."""
    info = torch.finfo(torch.float32)
    ends = torch.tensor([0.0, 1e-45, info.tiny, info.max, torch.inf, torch.nan])
    random = torch.randint(-(2**31), 2**31, (20,)).to(torch.int32).view(torch.float32)
    quotients = probe()[0]
    for scale in torch.cat((ends, -ends, random)):
        near = quotients * scale
        beside = [torch.nextafter(near, torch.tensor(s * torch.inf)) for s in (1, -1)]
        values = torch.cat((near, *beside, ends, -ends)).repeat(max(n // 1700, 1))
        ones = torch.ones(1, len(values))
        y = fuseline.rms_norm_fp8(ones, values, scale, 0.0, impl="triton")[0]
        wanted = (values / scale).clamp(-448.0, 448.0).to(FP8)
        nan = wanted.float().isnan()
        assert torch.equal(y.float().isnan(), nan)
        assert torch.equal(y.view(torch.uint8)[~nan], wanted.view(torch.uint8)[~nan]), scale
