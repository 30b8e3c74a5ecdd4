"""What operators on rows check of their arguments; messages name operator and argument."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# eps where none is given.
EPS = {dtype: torch.finfo(dtype).eps for dtype in DTYPES}


def require_tensor(
    op: str, x: Tensor, name: str = "x", dtypes: tuple[torch.dtype, ...] = DTYPES
) -> None:
    """Refuse an x (called `name`) that is no strided tensor of one of the dtypes."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: {name} is a {type(x).__name__}, expected a torch.Tensor")
    if x.dtype not in dtypes:
        have = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{op}: {name} has dtype {x.dtype}, expected one of: {have}")
    require_strided(op, name, x)


def require_rows(
    op: str, x: Tensor, name: str = "x", dtypes: tuple[torch.dtype, ...] = DTYPES
) -> None:
    """Refuse an x (called `name`) that is not (..., N) of one of the dtypes."""
    require_tensor(op, x, name, dtypes)
    if x.dim() == 0:
        raise ValueError(
            f"{op}: {name} is a scalar (0 dimensions), expected at least one dimension"
        )


def require_like(op: str, name: str, t: Tensor, x: Tensor, x_name: str = "x") -> None:
    """Refuse a second input whose dtype or device is not that of x (called `x_name`)."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{op}: {name} is a {type(t).__name__}, expected a torch.Tensor")
    require_strided(op, name, t)
    if t.dtype != x.dtype:
        raise TypeError(f"{op}: {name} has dtype {t.dtype}, expected {x.dtype} (as {x_name})")
    _require_device(op, name, t, x, x_name)


def require_twin(op: str, name: str, t: Tensor, x: Tensor, x_name: str = "x") -> None:
    """Refuse a second input whose shape, dtype or device is not that of x (called `x_name`)."""
    require_like(op, name, t, x, x_name)
    if t.shape != x.shape:
        raise ValueError(
            f"{op}: {name} has shape {tuple(t.shape)}, expected {tuple(x.shape)}, that of {x_name}"
        )


def require_broadcast(op: str, name: str, t: Tensor, x: Tensor, or_float: bool = False) -> None:
    """Refuse a second input whose shape does not broadcast to x's, or of another kind.

    or_float: it may also be of float32.
    """
    if or_float:
        require_like_or_float(op, name, t, x)
    else:
        require_like(op, name, t, x)
    shape, whole = t.shape, x.shape
    if shape == whole[len(whole) - len(shape) :]:  # in a third of the time of what follows
        return
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    if len(shape) > len(whole) or any(a != 1 and a != b for a, b in pairs):
        raise ValueError(
            f"{op}: {name} has shape {tuple(t.shape)}, "
            f"expected one that broadcasts to {tuple(x.shape)}, that of x"
        )


def require_along(op: str, dim: int, x: Tensor, name: str = "x") -> None:
    """Refuse an x (called `name`) of no dtype of ours, and what is no dimension of it."""
    require_rows(op, x, name)
    if not isinstance(dim, int):
        raise TypeError(f"{op}: dim is a {type(dim).__name__}, expected an int")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"{op}: dim is {dim}, expected one of {-x.dim()} to {x.dim() - 1}")


def require_last(op: str, dim: int, x: Tensor, why: str) -> None:
    """Refuse any dimension but the last, which is what `why` goes with."""
    if dim == -1:
        return
    require_along(op, dim, x)
    if dim != x.dim() - 1:
        raise ValueError(f"{op}: dim is {dim}, expected -1, the last, with {why}")


def require_weight(
    op: str, weight: Tensor | None, x: Tensor, name: str = "x", own: str = "weight"
) -> None:
    """Refuse a weight that is not (N,), of x's dtype or float32, beside x.

    The messages call x `name` and the weight `own`.
    """
    if weight is None:
        return
    require_like_or_float(op, own, weight, x, name)
    if tuple(weight.shape) != (x.shape[-1],):
        raise ValueError(
            f"{op}: {own} has shape {tuple(weight.shape)}, "
            f"expected {(x.shape[-1],)}, the last dimension of {name}"
        )


def require_like_or_float(op: str, own: str, t: Tensor, x: Tensor, name: str = "x") -> None:
    """Refuse what may be None but not of another dtype than x's or float32, or elsewhere."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{op}: {own} is a {type(t).__name__}, expected a torch.Tensor or None")
    require_strided(op, own, t)
    if t.dtype not in (x.dtype, torch.float32):
        other = "" if x.dtype == torch.float32 else " or torch.float32"
        raise TypeError(f"{op}: {own} has dtype {t.dtype}, expected {x.dtype} (as {name}){other}")
    _require_device(op, own, t, x, name)


def require_eps(op: str, eps: float | None, x: Tensor) -> float:
    """Refuse what is no number >= 0; return eps, that of x's dtype for None."""
    if eps is None:
        return EPS[x.dtype]
    eps = require_number(op, "eps", eps, "a float or None")
    if not eps >= 0.0:
        raise ValueError(f"{op}: eps is {eps}, expected a number >= 0")
    return eps


def require_weight_offset(op: str, offset: float, weight: Tensor | None) -> float:
    """Refuse what is no finite number, and any but 0 where there is no weight; return it."""
    offset = require_number(op, "weight_offset", offset)
    if not -math.inf < offset < math.inf:
        raise ValueError(f"{op}: weight_offset is {offset}, expected a finite number")
    if weight is None and offset != 0.0:
        raise ValueError(f"{op}: weight_offset is {offset}, expected 0 without a weight")
    return offset


def require_number(op: str, name: str, value: Any, expected: str = "a float") -> float:
    """Return what torch takes as a float, as one; refuse all else, such as what has a gradient."""
    came = type(value).__name__
    if isinstance(value, Tensor):
        if value.requires_grad:
            came += " that requires grad"
        elif value.dim() == 0 and not value.is_complex():
            value = value.item()
        else:
            came += f" of {value.dtype} and shape {tuple(value.shape)}"
    if not isinstance(value, (Real, torch.SymFloat)):
        raise TypeError(f"{op}: {name} is a {came}, expected {expected}")
    number: Any = value
    try:
        return number if isinstance(value, torch.SymFloat) else float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def require_exactly(
    op: str, name: str, t: Tensor, shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse an argument of a backward that is not what the forward saved or gave."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{op}: {name} is a {type(t).__name__}, expected a torch.Tensor")
    require_strided(op, name, t)
    if (t.shape, t.dtype, t.device) != (shape, dtype, device):
        raise ValueError(
            f"{op}: {name} has shape {tuple(t.shape)}, {t.dtype}, on {t.device}, "
            f"expected {tuple(shape)}, {dtype}, on {device}"
        )


def require_strided(op: str, name: str, t: Tensor) -> None:
    """Refuse a tensor whose elements do not lie in memory as its dtype and strides say."""
    if t.layout != torch.strided or t.is_nested or t.is_quantized:
        came = "nested" if t.is_nested else "quantized" if t.is_quantized else t.layout
        raise TypeError(f"{op}: {name} has layout {came}, expected torch.strided")


def _require_device(op: str, name: str, t: Tensor, x: Tensor, x_name: str) -> None:
    if t.device != x.device:
        raise ValueError(
            f"{op}: {name} is on {t.device}, expected {x.device}, the device of {x_name}"
        )
