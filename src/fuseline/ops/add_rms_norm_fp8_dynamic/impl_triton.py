"""x + residual and its RMSNorm to e4m3 by scales of its own, in Triton."""

from __future__ import annotations

import torch

from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.norms import rms_fp8


def fwd(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    block: int | None,
    scale_ub: float | None,
    wrap: Wrap | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return y, the scales, and x + residual. x: (rows, n_cols), as rms_fp8.fwd takes it."""
    y, scale, new_residual = rms_fp8.fwd(x, residual, weight, eps, None, block, scale_ub, wrap)
    assert new_residual is not None
    return y, scale, new_residual
