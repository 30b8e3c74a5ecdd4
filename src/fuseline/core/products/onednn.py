"""Products by oneDNN with what follows them as its post-operations, on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.core import onednn
from fuseline.core.inputs.layout import dense
from fuseline.core.products.backend import Backend, flat, gelu, in_pairs

# activation -> the post-operation and its algorithm.
_POST = {None: ("none", ""), "tanh": ("gelu", "tanh"), "none": ("gelu", "none")}


class OneDnn(Backend):
    name = "onednn"

    def unavailable(self, device_type: str) -> str | None:
        if device_type != "cpu":
            return f"it needs a on cpu, got {device_type}"
        if not torch.backends.mkldnn.is_available():
            return "torch was built without oneDNN"
        if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return f"torch {torch.__version__} has no mkldnn::_linear_pointwise"
        return None

    def refusal(self, direction: str, a: Tensor, b: Tensor, activation: str | None) -> str | None:
        if activation == "relu":
            return "its ReLU makes 0 of NaN"
        if why := onednn.refusal("a", a.dtype):
            return why
        if a.numel() == 0 or b.numel() == 0:
            return "a or b is empty"
        return "b is a batch" if b.dim() > 2 else None

    def gains_by(self, activation: str | None) -> bool:
        # Without one torch's own products are as fast, and take less time to call.
        return activation is not None

    def forward(
        self, a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None, save: bool
    ) -> tuple[Tensor, Tensor | None]:
        if not (save and activation):
            return _linear(a, b, bias, activation), None
        h = _linear(a, b, bias, None)
        return gelu(h, activation), h


def _linear(a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    attr, algorithm = _POST[activation]
    # It reads no other strides: those of a bias it does not look at.
    x, b = in_pairs(flat(a), b)
    x, weight = dense(x), b.mT if b.is_contiguous() else dense(b.mT)
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, dense(bias), attr, [], algorithm)
    return y.view(*a.shape[:-1], b.shape[-1])
