"""RMSNorm and the quantisation of its result as a model writes them, in plain torch operations."""

from typing import Optional, Tuple  # noqa: UP035 (TorchScript)

import torch
from torch import Tensor

from fuseline.primitives.fp8 import quantised


def rms_norm_fp8_dynamic(
    x: Tensor,
    weight: Optional[Tensor],  # noqa: UP045 (TorchScript)
    eps: float,
    block: Optional[int],  # noqa: UP045
    scale_ub: Optional[float],  # noqa: UP045
) -> Tuple[Tensor, Tensor]:  # noqa: UP006 (TorchScript)
    """Return v = x * rsqrt(mean(x^2) + eps) * weight in fp32, quantised, and the scales."""
    h = x.to(torch.float32)
    v = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        v = v * weight
    return quantised(v, block, scale_ub)
