"""Layer norm and the quantisation of its result, in plain torch operations."""

from typing import Optional

import torch
from torch import Tensor

from fuseline.primitives.fp8 import divided


def layer_norm_fp8(
    x: Tensor,
    weight: Optional[Tensor],  # noqa: UP045 (TorchScript)
    bias: Optional[Tensor],  # noqa: UP045
    scale: Tensor,
    eps: float,
) -> Tensor:
    """Return (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias in fp32, divided by scale and
    rounded once.
    """
    h = x.to(torch.float32)
    h = h - h.mean(-1, keepdim=True)
    v = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        v = v * weight
    if bias is not None:
        v = v + bias
    return divided(v, scale.reshape(()))
