"""Which numbers oneDNN's fused kernels take on this processor."""

from __future__ import annotations

import torch

_ops = torch.ops.mkldnn
BFLOAT16 = hasattr(_ops, "_is_mkldnn_bf16_supported") and bool(_ops._is_mkldnn_bf16_supported())


def refusal(name: str, dtype: torch.dtype) -> str | None:
    """Return why a tensor (called `name`) of a dtype has no fused kernel, or None."""
    if dtype not in (torch.float32, torch.bfloat16):
        return f"{name} has dtype {dtype}, expected float32 or bfloat16"
    if dtype == torch.bfloat16 and not BFLOAT16:
        return f"{name} has dtype {dtype}, which it takes with AVX-512 or AVX-NE-CONVERT alone"
    return None
