"""ATen's softmaxes on our kernels, and on ATen's own where ours have no rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.takeovers import (
    DEVICES,
    DTYPES,
    MARKS,
    assert_alike,
    calls,
    gradients,
    layouts,
)
from torch import Tensor

import fuseline

aten = torch.ops.aten
OPS = ["softmax", "log_softmax"]
pytestmark = MARKS


def kernels(op: str) -> tuple[Any, Any]:
    return getattr(aten, f"_{op}"), getattr(aten, f"_{op}_backward_data")


def assert_right(found: Tensor, exact: Tensor, size: Tensor) -> None:
    """Within 16 roundings of terms of that size."""
    gap = (found.double() - exact).abs() - 16 * torch.finfo(found.dtype).eps * size
    assert gap.numel() == 0 or gap.max() <= torch.finfo(found.dtype).smallest_normal


def size_of_gradient(op: str, dy: Tensor, y: Tensor, dim: int) -> Tensor:
    dy, p = dy.abs(), y if op == "softmax" else y.exp()
    if op == "softmax":
        return p * (dy + (dy * p).sum(dim, keepdim=True))
    return dy + p * dy.sum(dim, keepdim=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_all_that_aten_takes(op: str, dtype: torch.dtype, device: str) -> None:
    forward, backward = kernels(op)
    for x in layouts(device, dtype):
        dy = torch.randn_like(x)
        for dim in range(-max(1, x.dim()), max(1, x.dim())):
            y = forward(x, dim, False)
            dx = backward(dy, y, dim, dtype)
            before = calls(device, f"_{op}"), calls(device, f"_{op}_backward_data")
            with fuseline.enabled([op]):
                found, grad = forward(x, dim, False), backward(dy, y, dim, dtype)
            served = x.dim() > 0
            assert calls(device, f"_{op}") == before[0] + served
            assert calls(device, f"_{op}_backward_data") == before[1] + served
            assert_alike(found, y)
            assert_alike(grad, dx)
            exact = forward(x.double(), dim, False)
            assert_right(found, exact, exact.abs() + (op == "log_softmax"))
            given = dy.double(), y.double()
            exact = backward(*given, dim, torch.float64)
            assert_right(grad, exact, size_of_gradient(op, *given, dim))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("device", DEVICES)
def test_half_types_to_float32(device: str, op: str) -> None:
    x = torch.randn(3, 61, device=device, dtype=torch.float16, requires_grad=True)
    run: Callable[..., Tensor] = getattr(F, op)
    wanted = run(x, -1, dtype=torch.float32)
    for other in (x, x.bfloat16()):
        y = run(other, -1, dtype=torch.float32)
        with fuseline.enabled():
            before = calls(device, f"_{op}")
            found = run(other, -1, dtype=torch.float32)
            after = calls(device, f"_{op}")
        assert_alike(found, y)
        torch.testing.assert_close(found, y)
        if device == "cpu":
            assert after == before + 1, "converted first"
    with fuseline.enabled():
        found = run(x, -1, dtype=torch.float32)
        (grad,) = gradients(found, x)
    (good,) = gradients(wanted, x)
    assert_alike(grad, good)
    torch.testing.assert_close(grad, good)


@pytest.mark.parametrize("op", OPS)
def test_a_backward_whose_input_had_another_dtype_is_atens(op: str) -> None:
    backward = kernels(op)[1]
    y = getattr(torch, op)(torch.randn(3, 8), -1)
    for dtype, input_dtype in [
        (torch.float16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float64, torch.float32),
    ]:
        arguments = y.to(dtype), y.to(dtype), -1, input_dtype
        before = calls("cpu", f"_{op}_backward_data")
        with fuseline.enabled():
            found = backward(*arguments)
        assert calls("cpu", f"_{op}_backward_data") == before
        assert torch.equal(found, backward(*arguments))


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
def test_float32_gradients_of_half_inputs_on_a_gpu_are_atens(op: str) -> None:
    forward, backward = kernels(op)
    x = torch.randn(3, 61, device="cuda", dtype=torch.float16)
    y = forward(x, -1, True)
    arguments = y, y, -1, torch.float16
    with fuseline.enabled():
        before = calls("cuda", f"_{op}"), calls("cuda", f"_{op}_backward_data")
        assert torch.equal(forward(x, -1, True), y)
        found = backward(*arguments)
        assert (calls("cuda", f"_{op}"), calls("cuda", f"_{op}_backward_data")) == before
    assert found.dtype == torch.float16
    assert torch.equal(found, backward(*arguments))


@pytest.mark.parametrize("device", DEVICES)
def test_modules_run_on_them_forward_and_backward(device: str) -> None:
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True, device=device)
    x = torch.randn(2, 5, 16, device=device, requires_grad=True)
    logits = torch.randn(6, 9, device=device, requires_grad=True)
    target = torch.arange(6, device=device)

    def attend() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attention(x, x, x)[0].square().sum(), [x])

    def classify() -> tuple[Tensor, ...]:
        loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)(logits, target)
        return loss, *torch.autograd.grad(loss, [logits])

    for run, op in ((attend, "softmax"), (classify, "log_softmax")):
        wanted = run()
        with fuseline.enabled():
            before = calls(device, f"_{op}"), calls(device, f"_{op}_backward_data")
            found = run()
            assert calls(device, f"_{op}") > before[0]
            assert calls(device, f"_{op}_backward_data") > before[1]
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("device", DEVICES)
def test_masked_and_overflowing_rows_are_atens(device: str, op: str) -> None:
    x = torch.randn(6, 9, device=device)
    x[1, ::2] = -torch.inf
    x[2] = -torch.inf
    x[3, 4] = torch.inf
    x[4, 4] = torch.nan
    x[5] *= 1e30
    wanted = kernels(op)[0](x, 1, False)
    with fuseline.enabled():
        found = kernels(op)[0](x, 1, False)
    torch.testing.assert_close(found, wanted, equal_nan=True)


X, Y = torch.ones(3, 8), torch.ones(3, 7)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f, b: f(X, 2, False), "dim is 2, expected -2 to 1"),
        (lambda f, b: f(X[0, 0], -2, False), "dim is -2, expected -1 to 0"),
        (lambda f, b: b(X, X, -3, X.dtype), "dim is -3, expected -2 to 1"),
        (lambda f, b: b(X, Y, -1, X.dtype), "grad_output has shape [3, 8], expected that of"),
        (lambda f, b: b(X.half(), X, -1, X.dtype), "grad_output must have the dtype of output"),
        (lambda f, b: f(X.int(), -1, False), ""),
        (lambda f, b: f(X.half(), -1, True), ""),
        (lambda f, b: b(X, X, -1, torch.float16), ""),
    ],
)
def test_what_no_kernel_takes_is_named(op: str, call: Any, words: str) -> None:
    """Without words: ATen refuses it, and torch tells us why from 2.13 on."""
    with fuseline.enabled(), pytest.raises(RuntimeError) as caught:
        call(*kernels(op))
    assert (f"{op}: {words}" if words else f"aten::_{op}") in str(caught.value)
