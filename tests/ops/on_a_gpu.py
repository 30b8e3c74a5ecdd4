"""What ran on the GPU, by the names of the kernels, and tensors that lie misaligned there."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def kernels(call: Callable[[], object]) -> list[str]:
    """Names of what a second call runs; B stands for bfloat16."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        call()
        torch.cuda.synchronize()
    return [e.key.replace("__nv_bfloat16", "B") for e in prof.key_averages()]


def misaligned(shape: tuple[int, ...], offset: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers `offset` elements behind an aligned address, with NaN on either side."""
    size = torch.Size(shape).numel()
    flat = torch.full((size + offset + 64,), torch.nan, device="cuda", dtype=dtype)
    return flat[offset : offset + size].view(shape).normal_()
