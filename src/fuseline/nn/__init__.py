"""Modules over the operators, drop-in for torch.nn's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuseline.ops import rms_norm


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm (same constructor, state dict and repr) on fuseline.rms_norm.

    y = x * rsqrt(mean(x^2) + eps) * weight over the last len(normalized_shape) dimensions.
    `impl` names the implementation, as in fuseline.rms_norm. eps=None is finfo(x.dtype).eps, as
    there; torch takes float32's for half types, so name eps where the two must agree.
    """

    impl: str = "auto"

    def __init__(self, *args: Any, impl: str = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.impl = impl

    def forward(self, x: Tensor) -> Tensor:
        ndim = len(self.normalized_shape)
        if x.shape[-ndim:] != self.normalized_shape:
            raise ValueError(
                f"RMSNorm: x has shape {tuple(x.shape)}, expected it to end with normalized_shape, "
                f"{tuple(self.normalized_shape)}"
            )
        if ndim == 1:
            return rms_norm(x, self.weight, self.eps, self.impl)
        rows = x.flatten(-ndim)
        weight = None if self.weight is None else self.weight.flatten()
        return rms_norm(rows, weight, self.eps, self.impl).view(x.shape)
