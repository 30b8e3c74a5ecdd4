"""ATen's layer norm on our kernels: what it takes, what it gives, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.takeovers import DEVICES, DTYPES, MARKS, assert_alike, calls, layouts
from torch import Tensor

import fuseline

FWD, BWD = "native_layer_norm", "native_layer_norm_backward"
aten = torch.ops.aten
pytestmark = MARKS


def parameters(x: Tensor, count: int) -> list[tuple[Tensor | None, Tensor | None]]:
    """Weight and bias as ATen takes them beside x."""
    shape = x.shape[x.dim() - count :]
    dtypes = {x.dtype}  # the only one on a GPU
    if x.device.type == "cpu" and x.element_size() < 4:
        dtypes.add(torch.float32)
    pairs = [torch.randn(2, *shape, device=x.device).to(d).unbind() for d in dtypes]
    found: list[tuple[Tensor | None, Tensor | None]] = [(None, None)]
    for w, b in pairs:
        found += [(w, b), (w, None)]
        if b.dtype == x.dtype:  # ATen's own backward refuses a float32 bias alone
            found.append((None, b))
    return found


def exactly(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, dy: Tensor
) -> tuple[Tensor, ...]:
    """y, mean, rstd in fp64, then the gradients of what there is."""
    leaves = [None if t is None else t.double().requires_grad_() for t in (x, weight, bias)]
    dims = list(range(-len(shape), 0))
    first = leaves[0].mean(dims, keepdim=True)  # its rounding is the mean of what it leaves
    h = leaves[0] - first
    rest = h.mean(dims, keepdim=True)
    h = h - rest
    rstd = (h.square().mean(dims, keepdim=True) + 1e-5).rsqrt()
    y = h * rstd
    y = y if leaves[1] is None else y * leaves[1]
    y = y if leaves[2] is None else y + leaves[2]
    there = [t for t in leaves if t is not None]
    grads = iter(torch.autograd.grad(y, there, dy.double()))
    return y, first + rest, rstd, *(None if t is None else next(grads) for t in leaves)


def assert_right(found: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Within some roundings of the largest in `dtype`, which the statistics went through."""
    if found.numel():
        gap = (found.double() - exact).abs().max() / exact.abs().max().clamp(min=1)
        assert gap <= 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_that_aten_takes(dtype: torch.dtype, device: str) -> None:
    for x in layouts(device, dtype):
        for count in range(1, x.dim() + 1):
            shape, dy = list(x.shape[x.dim() - count :]), torch.randn_like(x)
            if 0 in shape:
                continue  # the mean of nothing is NaN here and 0 there
            for weight, bias in parameters(x, count):
                wanted = aten.native_layer_norm(x, shape, weight, bias, 1e-5)
                mask = [True, weight is not None, bias is not None]
                saved = x, shape, *wanted[1:], weight, bias
                grads = aten.native_layer_norm_backward(dy, *saved, mask)
                before = calls(device, FWD), calls(device, BWD)
                with fuseline.enabled(["layer_norm"]):
                    found = aten.native_layer_norm(x, shape, weight, bias, 1e-5)
                    ours = aten.native_layer_norm_backward(dy, *saved, mask)
                assert (calls(device, FWD), calls(device, BWD)) == (before[0] + 1, before[1] + 1)
                exact = exactly(x, shape, weight, bias, dy)
                for a, b, good in zip((*found, *ours), (*wanted, *grads), exact, strict=True):
                    assert (a is None) == (b is None)
                    if b is not None:
                        assert_alike(a, b)
                        assert_right(a, good, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False], [False, False, True]])
def test_only_the_gradients_that_are_asked_for(mask: list[bool], device: str) -> None:
    x, w, b = (torch.randn(s, device=device) for s in ((3, 8), 8, 8))
    mean, rstd = aten.native_layer_norm(x, [8], w, b, 1e-5)[1:]
    arguments = torch.randn_like(x), x, [8], mean, rstd, w, b, mask
    wanted = aten.native_layer_norm_backward(*arguments)
    with fuseline.enabled("layer_norm"):
        found = aten.native_layer_norm_backward(*arguments)
        leaves = [t.clone().requires_grad_(m) for t, m in zip((x, w, b), mask, strict=True)]
        y = F.layer_norm(leaves[0], (8,), leaves[1], leaves[2])
        y.backward(arguments[0])
    for a, good, leaf in zip(found, wanted, leaves, strict=True):
        assert (a is None) == (good is None) == (leaf.grad is None)
        if a is not None:
            torch.testing.assert_close(a, good)
            torch.testing.assert_close(leaf.grad, good)


@pytest.mark.parametrize("device", DEVICES)
def test_modules_run_on_it_forward_and_backward(device: str) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(device)
    norm = torch.nn.LayerNorm((4, 5), elementwise_affine=True).to(device)
    inputs = (torch.randn(s, device=device, requires_grad=True) for s in ((2, 5, 16), (3, 4, 5)))

    for module, x, count in zip((layer, norm), inputs, (2, 1), strict=True):
        leaves = [x, *module.parameters()]

        def run(m: Any = module, x: Tensor = x, leaves: Any = leaves) -> tuple[Tensor, ...]:
            return torch.autograd.grad(m(x).pow(3).sum(), leaves)

        wanted = run()
        with fuseline.enabled("layer_norm"):
            before = calls(device, FWD), calls(device, BWD)
            found = run()
            now = calls(device, FWD), calls(device, BWD)
            assert now == (before[0] + count, before[1] + count)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_gpu_without_kernels_for_it_is_not_listed() -> None:
    devices = [s.device for s in fuseline.status().served if s.op == "layer_norm"]
    assert "cpu" in devices
    for device in devices:
        assert calls(device, FWD) >= 0


X, W = torch.ones(2, 3, 4), torch.ones(4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((X, [5], None, None), "input has shape [2, 3, 4], expected it to end with"),
        (
            (X, [], None, None),
            "input has shape [2, 3, 4], expected it to end with normalized_shape, []",
        ),
        ((X[0, 0], [3, 4], None, None), "input has shape [4]"),
        ((X, [3, 4], torch.ones(12), None), "weight has shape [12], expected normalized_shape"),
        ((X, [4], None, torch.ones(1, 4)), "bias has shape [1, 4], expected normalized_shape, [4]"),
        ((X, [4], W.double(), None), "weight is Double, expected the dtype of input"),
        ((X.double(), [4], None, W), "bias is Float, expected the dtype of input"),
        ((X.half(), [4], W.bfloat16(), None), "weight is BFloat16, expected the dtype of input or"),
        ((X.half(), [4], W.half(), W), "bias must have the dtype of weight"),
        ((X.int(), [4], None, None), "x must be float64, float32, float16 or bfloat16"),
    ],
)
def test_what_aten_refuses_is_named(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(RuntimeError):
        aten.native_layer_norm(*arguments, 1e-5)
    with fuseline.enabled("layer_norm"), pytest.raises(RuntimeError) as caught:
        aten.native_layer_norm(*arguments, 1e-5)
    assert f"layer_norm: {words}" in str(caught.value)
