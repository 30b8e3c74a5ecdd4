"""The unit of the last place."""

from __future__ import annotations

import torch
from torch import Tensor


def ulp(ref: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the spacing of `dtype` at each element of the fp64 tensor ref, subnormals included."""
    info = torch.finfo(dtype)
    size = ref.abs().clamp(info.tiny, torch.finfo(torch.float64).max)
    return info.eps * (size / (2 * torch.frexp(size).mantissa))  # exact
