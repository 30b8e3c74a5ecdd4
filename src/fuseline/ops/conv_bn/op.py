"""The public function conv_bn, its implementations in training, and its folding else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function

from fuseline.core.convolutions import batch_norm, geometry, providers
from fuseline.core.convolutions.batch_norm import NAME
from fuseline.core.convolutions.convolution import Known
from fuseline.core.device import triton_unavailable
from fuseline.core.inputs import arguments
from fuseline.core.registration import contract, operator
from fuseline.core.registration.variant import guarded
from fuseline.ops.conv_add import op as conv_add
from fuseline.ops.conv_bn import impl_aten, impl_eager
from fuseline.ops.conv_relu import op as conv_relu
from fuseline.primitives.rms import statistics_dtype
from fuseline.primitives.triton import Wrap

_triton_fold = contract.triton_beside(__name__, "impl_fold")
_no_triton = cache(triton_unavailable)
_KNOWN = Known()


def conv_bn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    relu: bool = False,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    impl: str = "auto",
) -> Tensor:
    """Return the batch norm of a convolution and, with relu, its ReLU.

    h = conv(x, weight) + bias; y = (h - mean) / sqrt(var + eps) * bn_weight + bn_bias, and no less
    than 0 with relu, where mean and var are of each channel of h in training, else running_mean and
    running_var.

    x, weight, bias, stride, padding, dilation, groups
              as fuseline.conv_relu has them; float64, float32, float16 or bfloat16.
    bn_weight, bn_bias
              (K,), of x's dtype or float32; None: 1, 0.
    running_mean, running_var
              (K,), of x's dtype or float32; in training both may be None, else they are moved by
              momentum towards the mean and the unbiased variance of h, as torch moves them.
    eps       not negative.
    impl      "auto", or in training one of "triton" (on a GPU, of channels_last: norm and ReLU in
              one pass after that for statistics), "aten" (torch's kernels, one after another) and
              "eager" (the formula); else one of conv_relu's or, without relu, conv_add's.

    Without training the norm is folded into weight and bias, in float32 (float64) and rounded once,
    and conv_relu or conv_add is computed; where a gradient is wanted, the formula, which has more
    digits. It is folded at each call: torch's own batch norm moves running statistics without a
    new version of them, so that nothing tells whether what was folded before still holds.
    Returns y, (N, K, P, Q), of x's dtype; channels_last if x or the weight is, else contiguous. In
    training the bias cancels: it moves running_mean alone, and its gradient is 0. Saved for
    backward: x, weight, h, y with relu, and of each channel mean and 1 / sqrt(var + eps), in
    float32 (float64).
    Raises TypeError (dtype), ValueError (shape, device, numbers, eps, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: Ioffe and Szegedy, Batch Normalization, 2015; conv+bn of "Unit Test for Fusion".
    """
    tensors = (x, weight, bias, bn_weight, bn_bias, running_mean, running_var)
    numbers = (stride, padding, dilation, groups)
    if operator.has_proxy(*tensors):  # torch.fx's
        args = (*tensors, training, momentum, eps, relu, *numbers)
        traced: Any = handle_torch_function
        return traced(conv_bn, tensors, *args, impl=impl)  # type: ignore[no-any-return]
    return _run(tensors, training, momentum, eps, relu, numbers, impl)


def _run(
    tensors: tuple[Any, ...],
    training: bool,
    momentum: float,
    eps: float,
    relu: bool,
    numbers: tuple[Any, ...],
    impl: str,
) -> Tensor:
    """Check the arguments and return the result in the mode that is asked for."""
    weight = tensors[1]
    if not isinstance(weight, Tensor):
        came = type(weight).__name__
        raise TypeError(f"{NAME}: weight is a {came}, expected a torch.Tensor")
    stride, padding, dilation, groups = numbers
    places = geometry.numbers(NAME, weight, stride=stride, padding=padding, dilation=dilation)
    key = None
    # 1 is not True in a check, but in a key.
    if training is False and type(eps) is float and type(relu) is bool and not is_compiling():
        key = _KNOWN.look(tensors, places, groups, eps, relu, operator.lowering(tensors[0]))
        if key is True:
            return _folded(*tensors, eps, relu, *places, groups, impl)
    given = (*operator.lowered(*tensors[:3]), *tensors[3:5])
    eps = batch_norm.require(*given, eps, relu, *places, groups)
    moved = _require_running(weight, tensors[5], tensors[6], training)
    if not training:
        _KNOWN.add(key)
        run = _by_operators if is_compiling() else _folded
        return run(*tensors, eps, relu, *places, groups, impl)
    momentum = arguments.require_number(NAME, "momentum", momentum)
    y, mean, var = in_training(impl, *given, eps, relu, *places, groups)
    if moved:
        _move(moved, mean, given[2], var, momentum)
    return y


def in_training(impl: str, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, the mean of the convolution without its bias and its unbiased variance."""

    def again(*args: Any, impl: str) -> Any:
        return in_training(impl, *args)

    y: Tensor
    y, mean, var = operator.call(SELECTOR, batch_norm.validate, again, impl, *args)
    return y, mean, var


def _by_operators(*args: Any) -> Tensor:
    """Return the result by the running statistics, of args as _at_once has them."""
    conv, norm, running, numbers = args[:3], args[3:5], args[5:7], args[9:13]
    eps, relu, impl = args[7], args[8], args[13]
    tracked = (*conv, *norm)
    graph = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tracked)
    # Gradients through what is folded lose digits.
    if impl == "eager" or (graph and impl == "auto"):
        conv = x, weight, _ = operator.lowered(*conv)
        args = (*conv, *batch_norm.dense(*norm, *running), False, 0.0, eps, relu, *numbers)
        return geometry.placed(impl_eager.conv_bn(*args), geometry.memory_format(x, weight))
    # Under autocast the weight is rounded once, as it is folded.
    (x,) = operator.lowered(conv[0])
    given = (x, *_by_torch(x, *args[1:8]), *numbers)
    # Nothing is left for the public functions to check or to cast.
    to = conv_relu if relu else conv_add
    public: Any = conv_relu.conv_relu if relu else conv_add.conv_add
    y: Tensor = operator.call(to.SELECTOR, to.CONVOLUTION.validate, public, impl, *given)
    return y


def _at_once(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    relu: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    impl: str,
) -> Tensor:
    """Return the same where nothing looks on and no gradient is wanted."""
    vectors = (bias, bn_weight, bn_bias, mean, var)
    if impl == "eager":
        numbers = (stride, padding, dilation, groups)
        return _by_operators(x, weight, *vectors, eps, relu, *numbers, impl)
    (x,) = operator.lowered(x)
    folded = _by_kernel(x, weight, *vectors, eps)
    run = operator.below((conv_relu if relu else conv_add).SELECTOR, impl, x)
    y: Tensor = run(x, *folded, stride, padding, dilation, groups)
    return y


_folded: Callable[..., Tensor] = guarded(_by_operators, _at_once, _by_operators)


def _by_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return weight and bias with the norm folded into them, in x's dtype."""
    wide = statistics_dtype(x)
    scale = torch.rsqrt(var.to(wide) + eps)
    scale = scale if bn_weight is None else scale * bn_weight
    shift = -mean * scale if bias is None else (bias.to(wide) - mean) * scale
    shift = shift if bn_bias is None else shift + bn_bias
    weight = weight * scale.view(-1, *(1,) * (weight.dim() - 1))
    return weight.to(x.dtype), shift.to(x.dtype)


def _by_kernel(x: Tensor, weight: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """Return the same by one kernel, where it serves these."""
    found: tuple[Tensor, Tensor] | None = None
    served = x.dtype != torch.float64 and geometry.by_filters(weight)
    if served and not _no_triton("cuda" if x.is_cuda else x.device.type):
        found = _triton_fold().folded(weight, args[:-1], args[-1], x.dtype)
    return found or _by_torch(x, weight, *args)


@torch.no_grad()
def _move(
    running: tuple[Tensor, Tensor],
    mean: Tensor,
    bias: Tensor | None,
    var: Tensor,
    momentum: float,
) -> None:
    mean = mean if bias is None else mean + bias
    for old, new in zip(running, (mean, var), strict=True):
        old.lerp_(new.to(old.dtype), momentum)


def _require_running(
    weight: Tensor, mean: Tensor | None, var: Tensor | None, training: bool
) -> tuple[Tensor, Tensor] | None:
    """Refuse other running statistics than both or, in training, none; return them."""
    if not isinstance(training, bool):
        raise TypeError(f"{NAME}: training is a {type(training).__name__}, expected a bool")
    for name, t in (("running_mean", mean), ("running_var", var)):
        batch_norm.require_channels(name, t, weight)
    if mean is not None and var is not None:
        return mean, var
    if training and mean is var:
        return None
    name = "running_mean" if mean is None else "running_var"
    needed = "one beside the other" if training else "a torch.Tensor without training"
    raise ValueError(f"{NAME}: {name} is None, expected {needed}")


def _kernels(impl: Callable[[], Any]) -> contract.Kernels:
    """Return the functions of what computes norm and ReLU, and has torch convolve."""

    def fwd(*args: Any, wrap: Wrap | None = None) -> tuple[Tensor, ...]:
        batch_norm.validate(*args)
        found: tuple[Tensor, ...] = impl().fwd(batch_norm.call_of(*args), *args[3:7], wrap=wrap)
        return found

    def run(*args: Any, wrap: Wrap | None = None) -> tuple[Tensor, ...]:
        return fwd(*args, wrap=wrap)[:3]

    def bwd(*args: Any, wrap: Wrap | None = None) -> tuple[Tensor, ...]:
        call = batch_norm.validate_bwd(*args)
        dy, y, _, _, *saved = args[:10]
        dh, dnorm = impl().bwd(call, dy, y, *saved, args[14:], wrap=wrap)
        return batch_norm.gradients(args, dh, dnorm)

    return contract.Kernels(run, fwd, bwd)


def _not_by_triton(direction: str, *args: Any) -> str | None:
    call = batch_norm.call_of(*args)
    if call.x.dtype == torch.float64:
        return "x has dtype torch.float64, expected float32, float16 or bfloat16"
    if call.form is torch.contiguous_format:
        return "x and weight are contiguous, expected one that is channels_last"
    return None


def _eager(*args: Any) -> tuple[Tensor, ...]:
    y, mean, var = batch_norm.decomposed(*args)
    return geometry.placed(y, batch_norm.call_of(*args).form), mean, var


_TRITON = contract.Provider(
    "triton",
    _kernels(contract.triton_beside(__name__)),
    triton_unavailable,
    _not_by_triton,
    through=True,
    by_rule=False,
)
_ATEN = contract.Provider(
    "aten", _kernels(lambda: impl_aten), providers.no_aten, through=True, by_rule=False
)
SELECTOR = contract.provided(batch_norm.CONTRACT, _eager, _TRITON, _ATEN)
