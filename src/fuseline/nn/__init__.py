"""Modules over the operators, drop-in for torch.nn's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.registration.operator import PLAIN, autocasts, has_proxy
from fuseline.ops import rms_norm

# Kinds of device on which autocast has torch's RMSNorm compute in float32 and give it.
IN_FLOAT = frozenset(
    device
    for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA"))
    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", key)
)


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm (same constructor, state dict and repr) on fuseline.rms_norm.

    y = x * rsqrt(mean(x^2) + eps) * (weight_offset + weight) over the last len(normalized_shape)
    dimensions; the weight starts at 1 - weight_offset.
    `impl` names the implementation, as in fuseline.rms_norm. All else is as torch has it: y has x's
    dtype whatever that of weight is, float32 under autocast on a GPU; eps=None is float32's
    (float64's for float64); tensor subclasses and what our kernels do not take run torch's own.
    """

    impl: str = "auto"
    weight_offset: float = 0.0

    def __init__(
        self, *args: Any, impl: str = "auto", weight_offset: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.impl = impl
        self.weight_offset = weight_offset
        if weight_offset:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            torch.nn.init.constant_(self.weight, 1.0 - self.weight_offset)

    def extra_repr(self) -> str:
        offset = f", weight_offset={self.weight_offset}" if self.weight_offset else ""
        return super().extra_repr() + offset

    def forward(self, x: Tensor) -> Tensor:
        numbers = self.eps, self.impl, self.weight_offset
        return _rms_norm(x, self.weight, self.normalized_shape, *numbers)


def _rms_norm(
    x: Tensor,
    weight: Tensor | None,
    shape: tuple[int, ...],
    eps: float | None,
    impl: str,
    weight_offset: float,
) -> Tensor:
    """Return torch.nn.functional.rms_norm of x, from our kernels where they take the tensors."""
    ours = type(x) in PLAIN and (weight is None or type(weight) in PLAIN)
    if not ours and has_proxy(x, weight):  # torch.fx, whose graph then calls this function
        args = x, weight, shape, eps, impl, weight_offset
        return handle_torch_function(_rms_norm, (x, weight), *args)  # type: ignore[no-any-return]
    if ours and x.device.type in IN_FLOAT and autocasts(x.device.type):
        x, weight = _float(x), None if weight is None else _float(weight)
    weight, known = _beside(weight, x)
    if not (ours and known):
        if weight is not None and weight_offset:
            weight = weight.to(torch.promote_types(weight.dtype, torch.float32)) + weight_offset
        return F.rms_norm(x, shape, weight, eps)
    ndim, whole = len(shape), x.shape
    if whole[-ndim:] != shape:
        raise ValueError(
            f"RMSNorm: x has shape {tuple(whole)}, expected it to end with normalized_shape, "
            f"{tuple(shape)}"
        )
    if eps is None:
        eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
    if ndim == 1:
        return rms_norm(x, weight, eps, impl, weight_offset=weight_offset)
    weight = None if weight is None else weight.flatten()
    return rms_norm(x.flatten(-ndim), weight, eps, impl, weight_offset=weight_offset).view(whole)


def _float(t: Tensor) -> Tensor:
    """Return what autocast makes of an argument of an operator that it has in float32."""
    return t.float() if t.is_floating_point() and t.dtype != torch.float64 else t


def _beside(weight: Tensor | None, x: Tensor) -> tuple[Tensor | None, bool]:
    """Return the weight in a dtype that our kernels take beside x, and whether there is one."""
    if x.dtype not in DTYPES:
        return weight, False
    if weight is None or weight.dtype in (x.dtype, torch.float32):
        return weight, True
    if weight.dtype not in (torch.float16, torch.bfloat16):
        return weight, False
    return weight.to(torch.promote_types(x.dtype, torch.float32)), True
