"""What ran on the GPU, by the names of the kernels."""

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
