"""The environment variables that may change a number: what a worker takes over from its parent.

A fork server keeps the environment of its own start, so what the parent has set since reaches a
worker by message only. No tokens, host names or user names belong on the list.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

NAMES = (
    *("OMP_NUM_THREADS", "OMP_DYNAMIC", "OMP_PLACES", "OMP_PROC_BIND", "OMP_WAIT_POLICY"),
    *("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME", "MKL_NUM_THREADS"),
    *("MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"),
    *("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CONF", "MALLOC_ARENA_MAX"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DISABLE_PTX_JIT", "CUDA_FORCE_PTX_JIT"),
    *("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "NVIDIA_TF32_OVERRIDE"),
    *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_COMPILE_DISABLE"),
    # Which kernels torch registers over its own, as it is imported.
    *("TORCH_DISABLE_NATIVE_JIT", "TORCH_DISABLE_NATIVE_AOT", "PYTORCH_SUM_INNER_TREE"),
    "FUSELINE_TUNED",
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
)
PREFIXES = (
    *("TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "TORCH_NATIVE_", "TORCH_PYTHON_NATIVE_"),
    *("LIGER_KERNEL_", "QUACK_", "CUTE_DSL_"),
)


def current() -> dict[str, str]:
    """Return those that are set, by name."""
    return {name: value for name, value in sorted(os.environ.items()) if _matters(name)}


def impose(wanted: Mapping[str, str]) -> None:
    """Make them those given in this process; one that is not given goes."""
    for name in current().keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
    # Python has looked it up in the fork server already.
    tempfile.tempdir = None


def _matters(name: str) -> bool:
    # A remote cache is named by host, port and address.
    return name in NAMES or (name.startswith(PREFIXES) and "_REDIS_" not in name)
