"""What a call may not change in the process around it."""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fuseline import takeover

Settings = dict[str, str]


def snapshot(device: torch.device) -> Settings:
    """Return the settings of torch and the process that outlive a call.

    Not the environment variables: torch's own compiler sets some.
    """
    state: dict[str, object] = {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "autocast": (torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)),
        "threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "working directory": hash(os.getcwd()),
        # Flushed to zero, it adds up to nothing.
        "denormals": torch.tensor(1e-310, dtype=torch.float64, device="cpu").add(0).item() != 0,
        "modes of torch": (
            torch._C._len_torch_function_stack(),
            len(_get_current_dispatch_mode_stack()),
        ),
        "operators taken over": [(s.op, s.device) for s in takeover.status().served if s.enabled],
        "trace function": sys.gettrace(),
        "profile function": sys.getprofile(),
    } | {**_kernels(), **_process()}
    if device.type == "cuda":
        state["current device"] = torch.cuda.current_device()
        state["current stream"] = torch.cuda.current_stream(device).cuda_stream
    return {name: str(value) for name, value in state.items()}


def _kernels() -> dict[str, object]:
    """Return which kernels torch may take: what one call forbids, those after it go without."""
    backends: Any = torch.backends
    cudnn, onednn, cuda = backends.cudnn, backends.mkldnn, backends.cuda
    product = cuda.matmul
    reduced = ("fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction",
               "fp16_accumulation")  # fmt: skip
    each = (product, cudnn.conv, cudnn.rnn, onednn.matmul, onednn.conv, onednn.rnn)
    return {
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        "onednn": (onednn.enabled, onednn.deterministic),
        "attention kernels": {
            "flash": cuda.flash_sdp_enabled(),
            "mem_efficient": cuda.mem_efficient_sdp_enabled(),
            "cudnn": cuda.cudnn_sdp_enabled(),
            "math": cuda.math_sdp_enabled(),
        },
        "sums of products": [getattr(product, f"allow_{name}") for name in reduced],
        "fp32 precision": [backend.fp32_precision for backend in each],
    }


def _process() -> dict[str, object]:
    """Return what the operating system knows of the process, where it is one that has these."""
    if sys.platform != "linux":
        return {}
    return {
        "cores": sorted(os.sched_getaffinity(0)),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "interval timer": signal.getitimer(signal.ITIMER_REAL)[1],
    }


def random_states(device: torch.device) -> Settings:
    """Return the fingerprints of the random number generators."""
    state = {
        "Python's random state": hash(random.getstate()),
        "random state": hash(bytes(torch.get_rng_state().tolist())),
    }
    if device.type == "cuda":
        state["CUDA random state"] = hash(bytes(torch.cuda.get_rng_state(device).tolist()))
    return {name: str(value) for name, value in state.items()}


def changes(before: Settings, after: Settings) -> str | None:
    """Return which settings differ, or None."""
    found = [f"{n}: {before[n]} became {after[n]}" for n in before if before[n] != after[n]]
    return "; ".join(found) or None
