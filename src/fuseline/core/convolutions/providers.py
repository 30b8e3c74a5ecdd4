"""Torch's kernels of convolutions: the plain ones, and those that also compute what follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuseline.core.convolutions import geometry
from fuseline.core.convolutions.convolution import Backward, Call, Convolution
from fuseline.core.device import triton_unavailable
from fuseline.core.onednn import refusal
from fuseline.core.registration import contract
from fuseline.core.registration.contract import Kernels, Provider
from fuseline.core.selection.select import Selector

_DEVICES = ("cpu", "cuda")


def register(of: Convolution, eager: Callable[..., Tensor], passes: Callable[[], Any]) -> Selector:
    """Register an operator; return its selector, in order of preference.

    passes  () -> the module with what follows the convolution in Triton: epilogue, gradient
    """

    def checked(*args: Any) -> Tensor:
        call = of.validate(*args)
        return geometry.placed(eager(*args), call.form)

    return contract.provided(of.contract(), checked, *_providers(of, passes))


def _providers(of: Convolution, passes: Callable[[], Any]) -> tuple[Provider, ...]:
    plain, fused = partial(_gradients, of), partial(_fused_gradients, of, passes)
    cudnn = Provider(
        "cudnn",
        Kernels(run=partial(_cudnn, of), bwd=fused),
        _no_cudnn,
        partial(_not_by_cudnn, of),
        by_rule=False,
    )
    triton = Provider(
        "triton",
        Kernels(run=partial(_triton, of, passes), bwd=fused),
        triton_unavailable,
        partial(_not_by_triton, of),
        through=True,
        by_rule=False,
    )
    onednn = Provider(
        "onednn",
        Kernels(run=partial(_onednn, of), bwd=plain),
        _no_onednn,
        partial(_not_by_onednn, of),
        by_rule=False,
    )
    aten = Provider(
        "aten", Kernels(run=partial(_aten, of), bwd=plain), no_aten, through=True, by_rule=False
    )
    # cuDNN's end in ReLU; oneDNN's own makes 0 of NaN, so that it has but the sum.
    return (*(cudnn,) * of.relu, triton, *(onednn,) * of.adds, aten)


def _gradients(of: Convolution, *args: Any, wrap: Any = None) -> tuple[Tensor, ...]:
    """Return the gradients by torch's kernels."""
    return _placed(of.validate_bwd(*args), of.gradients(*args))


def _fused_gradients(
    of: Convolution, passes: Callable[[], Any], *args: Any, wrap: Any = None
) -> tuple[Tensor, ...]:
    """Return the gradients; that through ReLU and the bias's come from one pass, where it serves
    them.
    """
    given = of.validate_bwd(*args)
    call = given.call
    sums = given.needs[2]
    if not (of.relu or sums) or _not_in_channels(call) or triton_unavailable(call.x.device.type):
        return _gradients(of, *args, wrap=wrap)
    images = (t if t is None else t.contiguous(memory_format=call.form) for t in given[:2])
    g, dbias = passes().gradient(*images, sums, wrap)
    rest = given._replace(needs=(*given.needs[:2], False))
    dx, dweight, _ = rest.convolved(g) if any(rest.needs) else (None, None, None)
    return _placed(given, (dx, dweight, dbias, g))


def _placed(given: Backward, gradients: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Return those that are needed, images in the result's format, and empty ones."""
    form = given.call.form

    def placed(grad: Tensor | None, need: bool) -> Tensor:
        if not need or grad is None:
            return given.x.new_empty((0,))
        return geometry.placed(grad, form) if grad.dim() > 1 else grad.contiguous()

    return tuple(map(placed, gradients, given.needs))


def no_aten(device_type: str) -> str | None:
    """Return why torch's own convolution is not what runs on a kind of device, or None."""
    return None if device_type in _DEVICES else f"it needs x on cpu or cuda, got {device_type}"


def _aten(of: Convolution, *args: Any, wrap: Any = None) -> Tensor:
    call = of.call(*args)
    y = call.convolved()
    if call.z is not None:
        y = y.add_(call.z)
    if of.relu:
        y = y.relu_()
    return geometry.placed(y, call.form)


def _no_cudnn(device_type: str) -> str | None:
    if device_type != "cuda":
        return f"it needs x on cuda, got {device_type}"
    return None if torch.backends.cudnn.is_available() else "torch has no cuDNN here"


def _not_by_cudnn(of: Convolution, direction: str, *args: Any) -> str | None:
    x, weight, groups = args[0], args[1], args[-1]
    dtype, dims = x.dtype, x.dim()
    if dtype == torch.float64:
        return "x has dtype torch.float64, expected float32, float16 or bfloat16"
    if dims != 4:
        return f"x has {dims} dimensions, expected 4"
    # Seen on an H200, cuDNN 9.19: 5 of 416 problems (results/h200/convolutions-2026-11-26).
    if dtype == torch.float32 and weight.shape[2:].numel() == 1:
        return "its ReLU of 1x1 kernels in float32 makes 0 of NaN"
    if of.adds and x.shape[1] % 8:
        return f"x has {x.shape[1]} channels: with a summand its ReLU makes 0 of some NaN"
    if 1 < groups == x.shape[1]:
        return "groups are single channels: ten times slower than torch's own kernels for these"
    if not torch.backends.cudnn.enabled:
        return "torch.backends.cudnn.enabled is False"
    if torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic:
        return "torch's fused convolutions take any algorithm, expected a deterministic one"
    return None


def _cudnn(of: Convolution, *args: Any) -> Tensor:
    call = of.call(*args)
    bias = None if call.bias is None else call.bias.contiguous()
    rest = (bias, *call.places, call.groups)
    if call.z is None:
        return torch.cudnn_convolution_relu(call.x, call.weight, *rest)
    return torch.cudnn_convolution_add_relu(call.x, call.weight, call.z, 1.0, *rest)


def _not_in_channels(call: Call) -> str | None:
    """Return why what follows is no pass over rows of channels, or None."""
    if call.x.dtype == torch.float64:
        return "x has dtype torch.float64, expected float32, float16 or bfloat16"
    if call.form is torch.contiguous_format:
        return "x and weight are contiguous, expected one that is channels_last"
    return "x is empty" if call.x.shape[0] == 0 else None


def _not_by_triton(of: Convolution, direction: str, *args: Any) -> str | None:
    return _not_in_channels(of.call(*args))


def _triton(of: Convolution, passes: Callable[[], Any], *args: Any, wrap: Any = None) -> Tensor:
    call = of.call(*args)
    h = geometry.placed(call._replace(bias=None).convolved(), call.form)
    if call.bias is None and not of.relu:
        return h
    bias = None if call.bias is None else call.bias.contiguous()
    z = None if call.z is None else call.z.contiguous(memory_format=call.form)
    passes().epilogue(h, bias, z, of.relu, wrap)
    return h


def _no_onednn(device_type: str) -> str | None:
    if device_type != "cpu":
        return f"it needs x on cpu, got {device_type}"
    if not torch.backends.mkldnn.is_available():
        return "torch was built without oneDNN"
    if not hasattr(torch.ops.mkldnn, "_convolution_pointwise"):
        return f"torch {torch.__version__} has no mkldnn::_convolution_pointwise"
    return None


def _not_by_onednn(of: Convolution, direction: str, *args: Any) -> str | None:
    call = of.call(*args)
    if why := refusal("x", call.x.dtype):
        return why
    if call.x.numel() == 0 or call.x.dim() != 4:
        return f"x has shape {tuple(call.x.shape)}, expected 4 dimensions and no 0"
    # It adds by kernels of its own to nothing else.
    if call.form is torch.contiguous_format or call.groups != 1:
        return "it adds z to convolutions of channels_last without groups alone"
    return None


def _onednn(of: Convolution, *args: Any) -> Tensor:
    call = of.call(*args)
    assert call.z is not None
    # It does not look at the strides of a bias.
    bias = None if call.bias is None else call.bias.contiguous()
    rest: Any = (call.weight, bias, call.padding, call.stride, call.dilation, call.groups)
    y: Tensor = torch.ops.mkldnn._convolution_pointwise.binary(
        call.x, call.z, *rest, "add", 1.0, None, [], ""
    )
    # Its ReLU makes 0 of NaN.
    return geometry.placed(y.relu_(), call.form)
