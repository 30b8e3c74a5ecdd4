"""Modules over the operators, drop-in for torch.nn's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuseline.ops import rms_norm


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm (same constructor, state dict and repr) on fuseline.rms_norm.

    y = x * rsqrt(mean(x^2) + eps) * (weight_offset + weight) over the last len(normalized_shape)
    dimensions; the weight starts at 1 - weight_offset.
    `impl` names the implementation, as in fuseline.rms_norm. eps=None is finfo(x.dtype).eps, as
    there; torch takes float32's for half types, so name eps where the two must agree.
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
        ndim = len(self.normalized_shape)
        if x.shape[-ndim:] != self.normalized_shape:
            raise ValueError(
                f"RMSNorm: x has shape {tuple(x.shape)}, expected it to end with normalized_shape, "
                f"{tuple(self.normalized_shape)}"
            )
        offset = self.weight_offset
        if ndim == 1:
            return rms_norm(x, self.weight, self.eps, self.impl, weight_offset=offset)
        rows = x.flatten(-ndim)
        weight = None if self.weight is None else self.weight.flatten()
        return rms_norm(rows, weight, self.eps, self.impl, weight_offset=offset).view(x.shape)
