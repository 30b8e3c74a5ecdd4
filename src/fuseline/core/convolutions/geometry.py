"""Shapes, strides and memory formats of convolutions, and what no implementation takes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.compiler import is_compiling

from fuseline.core.inputs import arguments

# The least value of each list of numbers, one for a spatial dimension.
LEAST = {"stride": 1, "padding": 0, "dilation": 1}
_INTS = (int, torch.SymInt)
_LAST: Any = {4: torch.channels_last, 5: torch.channels_last_3d}


def numbers(op: str, weight: Tensor, **given: Any) -> list[list[int]]:
    """Return stride, padding and dilation, each one number or one a spatial dimension, as lists."""
    dims = weight.dim() - 2
    if not 1 <= dims <= 3:
        raise ValueError(f"{op}: weight has {dims + 2} dimensions, expected 3 to 5: (K, C, ...)")
    found, ints = [], (int,) * dims
    for name, v in given.items():
        if type(v) is int:
            found.append([v] * dims)
        elif type(v) is tuple and (*map(type, v),) == ints:  # as modules have them
            found.append([*v])
        else:
            found.append(_list(op, name, v, dims))
    return found


def _list(op: str, name: str, value: Any, dims: int) -> list[int]:
    if isinstance(value, _INTS):
        value = (value,)
    came = value if isinstance(value, Sequence) and not isinstance(value, str) else None
    if came is None or not all(isinstance(v, _INTS) for v in came):
        raise TypeError(f"{op}: {name} is {value!r}, expected an int or {dims} of them")
    if len(came) not in (1, dims):
        raise ValueError(f"{op}: {name} has {len(came)} numbers, expected 1 or {dims}")
    return list(came) * dims if len(came) == 1 else list(came)


def output_shape(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int]
) -> list[int]:
    """Return the shape of the result."""
    places = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    return [x.shape[0], weight.shape[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1
                                           for n, k, s, p, d in places)]  # fmt: skip


def memory_format(x: Tensor, weight: Tensor) -> torch.memory_format:
    """Return that of the result and of all gradients of its rank: channels_last where x or the
    weight is.

    By the rule of torch's convolution, ATen's `suggest_memory_format`: strides decide, also those
    of dimensions of one element, so that a 1x1 kernel of strides (C, 1, C, C) is channels_last and
    one of (C, 1, 1, 1) is not. Torch's result is not followed where its kernels leave the rule:
    contiguous in fp64 and of single channels as groups on a GPU, of an empty batch, of images of
    one element that lie apart and, where oneDNN does not compute, of three dimensions and groups on
    a CPU; of one dimension now and then not contiguous.
    """
    last = _LAST.get(x.dim())
    if last is None:
        return torch.contiguous_format
    if type(x) is Tensor and not x.is_meta and x.dtype != torch.float64 and not is_compiling():
        return _torchs(x, weight, _ONEDNN)  # type: ignore[no-any-return]
    if x.device.type == "meta":  # torch's says nothing of memory without a device
        return torch.contiguous_format
    found = suggest_memory_format(x) is last or suggest_memory_format(weight) is last
    return last if found else torch.contiguous_format


# The rule in C++, in a thirtieth of the time: that of oneDNN, which looks at no device and calls no
# fp64 channels_last.
_torchs: Any = torch._C._conv_determine_backend_memory_format
_ONEDNN: Any = torch._C._ConvBackend.Mkldnn  # type: ignore[attr-defined]


def placed(t: Tensor, form: torch.memory_format) -> Tensor:
    """Return a result in a memory format by its strides, too.

    What has dimensions of one element may lie in memory as in either.
    """
    t = t.contiguous(memory_format=form)
    return t.to(memory_format=form) if 1 in t.shape else t


def by_filters(weight: Tensor) -> bool:
    """Whether the elements of each filter lie side by side in memory, filter after filter."""
    last = _LAST.get(weight.dim())
    dense = weight.is_contiguous() or (last and weight.is_contiguous(memory_format=last))
    return bool(dense) and not weight.is_neg()


def empty(like: Tensor, shape: Sequence[int], form: torch.memory_format) -> Tensor:
    """Return memory for a result."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=form)


def require(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> None:
    """Refuse what is no convolution of x and weight with a bias."""
    arguments.require_tensor(op, x)
    arguments.require_like(op, "weight", weight, x)
    _require_channels(op, x, weight, groups)
    if bias is not None:
        arguments.require_like(op, "bias", bias, x)
        require_channels(op, "bias", bias, weight)
    _require_places(op, x, weight, stride, padding, dilation)


def require_channels(op: str, name: str, t: Tensor, weight: Tensor) -> None:
    """Refuse what is not one number for each channel of the result."""
    if t.shape != weight.shape[:1]:
        raise ValueError(
            f"{op}: {name} has shape {tuple(t.shape)}, expected {tuple(weight.shape[:1])}, "
            "the first dimension of weight"
        )


def require_result(op: str, name: str, t: Tensor, x: Tensor, shape: Sequence[int]) -> None:
    """Refuse a tensor that is not as the result is."""
    arguments.require_exactly(op, name, t, torch.Size(shape), x.dtype, x.device)


def _require_channels(op: str, x: Tensor, weight: Tensor, groups: int) -> None:
    if not 3 <= x.dim() <= 5:
        raise ValueError(
            f"{op}: x has {x.dim()} dimensions, expected 3 to 5: (N, C, one to three spatial ones)"
        )
    if weight.dim() != x.dim():
        raise ValueError(f"{op}: weight has {weight.dim()} dimensions, expected {x.dim()}, as x")
    for name, sizes in (("x", x.shape[1:]), ("weight", weight.shape)):
        if 0 in sizes:
            shape = tuple((x if name == "x" else weight).shape)
            raise ValueError(f"{op}: {name} has shape {shape}, expected no 0 but for x's N")
    if not isinstance(groups, _INTS):
        raise TypeError(f"{op}: groups is a {type(groups).__name__}, expected an int")
    if groups < 1 or weight.shape[0] % groups:
        raise ValueError(
            f"{op}: groups is {groups}, expected a divisor of {weight.shape[0]}, the first "
            "dimension of weight"
        )
    if weight.shape[1] * groups != x.shape[1]:
        raise ValueError(
            f"{op}: weight has shape {tuple(weight.shape)}, expected second dimension "
            f"{x.shape[1] / groups:g}, the {x.shape[1]} channels of x over {groups} groups"
        )


def _require_places(
    op: str,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> None:
    dims = x.dim() - 2
    for (name, least), values in zip(LEAST.items(), (stride, padding, dilation), strict=True):
        if len(values) != dims:
            raise ValueError(f"{op}: {name} has {len(values)} numbers, expected {dims}")
        if any(v < least for v in values):
            raise ValueError(f"{op}: {name} is {list(values)}, expected numbers >= {least}")
    for i in range(dims):
        size, reach = x.shape[2 + i] + 2 * padding[i], dilation[i] * (weight.shape[2 + i] - 1) + 1
        if size < reach:
            raise ValueError(
                f"{op}: weight has shape {tuple(weight.shape)}, which with dilation "
                f"{list(dilation)} is larger than x with padding: {reach} > {size} in dimension "
                f"{2 + i}"
            )
