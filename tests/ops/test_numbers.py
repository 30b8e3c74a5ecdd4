"""What stands for a number: what torch takes as a float is one, all else is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fuseline

Call = Callable[[Tensor, Any], Any]
CALLS: dict[str, tuple[str, Call]] = {
    "rms_norm": ("eps", lambda x, v: fuseline.rms_norm(x, eps=v)),
    "layer_norm": ("eps", lambda x, v: fuseline.layer_norm(x, eps=v)),
    "add_rms_norm": ("eps", lambda x, v: fuseline.add_rms_norm(x, x, eps=v)[0]),
    "rms_norm_fp8": ("eps", lambda x, v: fuseline.rms_norm_fp8(x, None, x.new_ones(()), v).float()),
    "rms_norm_fp8_dynamic": ("eps", lambda x, v: fuseline.rms_norm_fp8_dynamic(x, eps=v)[1]),
    "scale_ub": ("scale_ub", lambda x, v: fuseline.rms_norm_fp8_dynamic(x, scale_ub=v)[1]),
    "module": ("eps", lambda x, v: fuseline.nn.RMSNorm(x.shape[-1], eps=v)(x)),
    "offset": ("weight_offset", lambda x, v: fuseline.rms_norm(x, x[0], weight_offset=v)),
    "masked_softmax": ("scale", lambda x, v: fuseline.masked_softmax(x, scale=v)),
    "softmax": ("scale", lambda x, v: fuseline.softmax(x, scale=v)),
    "log_softmax": ("scale", lambda x, v: fuseline.log_softmax(x, scale=v)),
    "dropout": ("p", lambda x, v: fuseline.bias_dropout_add(x, x[0], x, v, True, seed=11)),
}
NORMS: dict[str, Callable[[Tensor, Tensor | None, float], Tensor]] = {
    "rms_norm": fuseline.rms_norm,
    "layer_norm": lambda x, w, eps: fuseline.layer_norm(x, w, None, eps),
    "add_rms_norm": lambda x, w, eps: fuseline.add_rms_norm(x, torch.zeros_like(x), w, eps)[0],
}
IDS = {"argvalues": CALLS.values(), "ids": CALLS}


@pytest.mark.parametrize(("name", "call"), **IDS)
def test_what_torch_takes_as_a_float_is_one(name: str, call: Call) -> None:
    x, value = torch.randn(5, 19), 0.625
    expected = call(x, value)
    for same in (torch.tensor(value), torch.tensor(value, dtype=torch.bfloat16), Fraction(5, 8)):
        assert torch.equal(call(x, same), expected)
    assert torch.equal(call(x, np.float32(value)), expected)
    torch.testing.assert_close(call(x, torch.tensor(1)), call(x, 1.0))


@pytest.mark.parametrize(("name", "call"), **IDS)
def test_what_has_a_gradient_or_no_one_value_is_refused(name: str, call: Call) -> None:
    x = torch.randn(5, 19)
    with pytest.raises(TypeError, match=f"{name} is a Tensor that requires grad, expected a float"):
        call(x, torch.tensor(0.5, requires_grad=True))
    with pytest.raises(TypeError, match=f"{name} is a Tensor that requires grad, expected a float"):
        torch.func.grad(lambda v: call(x, v).sum())(torch.tensor(0.5))
    for bad in (torch.tensor([0.5]), torch.tensor([0.5, 0.25]), torch.tensor(0.5j)):
        with pytest.raises(TypeError, match=f"{name} is a Tensor.*, expected a float"):
            call(x, bad)
    with pytest.raises(ValueError, match=f"{name} is -inf"):
        call(x, -(10**400))


def test_an_eps_beyond_all_floats_leaves_zeros() -> None:
    assert not fuseline.rms_norm(torch.randn(5, 19), eps=10**400).any()


@pytest.mark.parametrize("eps", [1e-320, 1e-40, 1e39, 1e300])
@pytest.mark.parametrize("name", NORMS)
def test_forward_mode_keeps_an_eps_beyond_float32(name: str, eps: float) -> None:
    torch.manual_seed(0)
    x, tangent = torch.randn(3, 19), torch.randn(3, 19)
    x[1] = 0.0
    y, dy = torch.func.jvp(lambda t: NORMS[name](t, None, eps), (x,), (tangent,))
    h, dh = (t.double() for t in (x, tangent))
    if name == "layer_norm":
        h, dh = (t - t.mean(-1, keepdim=True) for t in (h, dh))
    rstd = (h.square().mean(-1, keepdim=True) + eps) ** -0.5
    exact = h * rstd
    moved = rstd * (dh - exact * (exact * dh).mean(-1, keepdim=True))
    torch.testing.assert_close(y, exact.float(), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(dy, moved.float(), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("name", NORMS)
def test_forward_mode_scales_a_vanishing_row_by_an_infinite_weight(name: str) -> None:
    x, weight = torch.randn(3, 19), torch.randn(19)
    weight[0] = torch.inf
    y, _ = torch.func.jvp(lambda t: NORMS[name](t, weight, 1e300), (x,), (x,))
    assert y[:, 0].isinf().all()
    assert torch.equal(y, NORMS[name](x, weight, 1e300))


def test_compiled_a_number_may_be_a_tensor() -> None:
    x = torch.randn(5, 19)
    compiled = torch.compile(lambda t, v: fuseline.masked_softmax(t, scale=v), backend="aot_eager")
    for value in (0.5, torch.tensor(0.25), 3):
        torch.testing.assert_close(compiled(x, value), fuseline.masked_softmax(x, scale=value))
