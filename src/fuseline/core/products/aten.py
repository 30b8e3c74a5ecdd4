"""Products by torch's own operators, on a CPU or a GPU: they serve every call."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.core.products.backend import Backend, flat, gelu, in_pairs

_DEVICES = ("cpu", "cuda")


class Aten(Backend):
    name = "aten"

    def unavailable(self, device_type: str) -> str | None:
        return None if device_type in _DEVICES else f"it needs a on cpu or cuda, got {device_type}"

    def forward(
        self, a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None, save: bool
    ) -> tuple[Tensor, Tensor | None]:
        h = self._affine(a, b, bias)
        if activation is None:
            return h, None
        if activation == "relu":
            return h.relu_(), None
        return gelu(h, activation), h if save else None

    def _affine(self, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return self.product(a, b)
        if b.dim() > 2:
            return self.product(a, b).add_(bias)
        return torch.addmm(bias, *in_pairs(flat(a), b)).view(*a.shape[:-1], b.shape[-1])
