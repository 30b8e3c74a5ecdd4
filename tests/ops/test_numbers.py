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
    "module": ("eps", lambda x, v: fuseline.nn.RMSNorm(x.shape[-1], eps=v)(x)),
    "offset": ("weight_offset", lambda x, v: fuseline.rms_norm(x, x[0], weight_offset=v)),
    "masked_softmax": ("scale", lambda x, v: fuseline.masked_softmax(x, scale=v)),
    "softmax": ("scale", lambda x, v: fuseline.softmax(x, scale=v)),
    "log_softmax": ("scale", lambda x, v: fuseline.log_softmax(x, scale=v)),
    "dropout": ("p", lambda x, v: fuseline.bias_dropout_add(x, x[0], x, v, True, seed=11)),
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


def test_compiled_a_number_may_be_a_tensor() -> None:
    x = torch.randn(5, 19)
    compiled = torch.compile(lambda t, v: fuseline.masked_softmax(t, scale=v), backend="aot_eager")
    for value in (0.5, torch.tensor(0.25), 3):
        torch.testing.assert_close(compiled(x, value), fuseline.masked_softmax(x, scale=value))
