"""RMSNorm and the quantisation of its result as a model writes them, in plain torch operations."""

from typing import Optional

import torch
from torch import Tensor

from fuseline.primitives.fp8 import divided


def rms_norm_fp8(
    x: Tensor,
    weight: Optional[Tensor],  # noqa: UP045 (TorchScript)
    scale: Tensor,
    eps: float,
) -> Tensor:
    """Return x * rsqrt(mean(x^2) + eps) * weight / scale in fp32,
    between -448 and 448, rounded once.
    """
    h = x.to(torch.float32)
    v = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        v = v * weight
    return divided(v, scale.reshape(()))
