"""Products by torch's own operators, on a CPU or a GPU: they serve every call."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core.products.backend import Backend, flat, gelu

_DEVICES = ("cpu", "cuda")


def in_pairs(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return what torch multiplies on a CPU: of half types with one column of zeros more, if odd.

    oneDNN's kernels for processors with AMX take columns by two, and the last of an odd number with
    what lies behind its row, times 0: a NaN there spread to the row (torch 2.13).
    """
    if a.is_cuda or a.dtype.itemsize > 2 or a.shape[-1] % 2 == 0:
        return a, b
    return F.pad(a, (0, 1)), F.pad(b, (0, 0, 0, 1))


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

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(*in_pairs(a, b)).contiguous()

    def _affine(self, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return self.product(a, b)
        if b.dim() > 2:
            return self.product(a, b).add_(bias)
        return torch.addmm(bias, *in_pairs(flat(a), b)).view(*a.shape[:-1], b.shape[-1])
