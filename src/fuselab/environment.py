"""Where a number was measured: an allow-list, the same at every start on the same machine.

No host names, user names, home folders or serial numbers; nothing that changes between two
starts (a clock's reading, a temperature), because the store keeps equal environments once.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

import fuseline
from fuselab import plugins
from fuselab.processes import variables
from fuseline.core import native
from fuseline.core.selection import rules, tuned

PACKAGE = Path(__file__).parent
# With these installed torch registers kernels over its own (torch.backends.python_native), in
# versions that differ from torch to torch.
NATIVE_PACKAGES = ("nvidia-cutlass-dsl", "apache-tvm-ffi", "helion", "flydsl", "nvmath-python")


def collect(device: str) -> dict[str, Any]:
    """Return what is known of the machine and the software; initialises CUDA for a GPU."""
    target = torch.device(device)
    found = {"device": target.type, **_machine(), **_software(), "native": _native(target.type)}
    if target.type == "cuda":
        found |= _gpu(target)
    return {name: value for name, value in found.items() if value is not None}


def code(op: str, source: str, *versions: str, tables: bool = True) -> str:
    """Return a short hash of what is measured: a user's file, or an operator's folder and binary.

    What a user's file imports is not in it; `versions` are of what is measured beside it.
    tables: with those of the launch parameters, also the user's own.
    """
    files, binary = [Path(source)], ""
    if not source:
        library = Path(native.__file__).parent.parent
        files = [*(library / "ops" / op).glob("*"), *(library / "core").rglob("*.py")]
        files += (library / "primitives").rglob("*.py")
        binary = _binary_hash() or ""
        if tables:
            files += (library / "ops" / op / "tuned").glob("*.json")
            files += rules.shipped_files(op)
    if tables:
        files += (*tuned.user_files(op), *rules.user_files(op))
    digest = hashlib.sha256(binary.encode())
    for file in sorted(f for f in files if os.access(f, os.R_OK) and f.is_file()):
        digest.update(file.read_bytes())
    for text in versions:
        digest.update(text.encode())
    return digest.hexdigest()[:12]


def driver() -> str | None:
    """Return the version of the NVIDIA driver, without initialising CUDA."""
    found = ask_nvml("nvmlSystemGetDriverVersion")
    return str(found) if found else None


@cache
def nvml() -> Any:
    """Return the initialised pynvml, or None where it or its library is missing."""
    try:
        pynvml = importlib.import_module("pynvml")
        pynvml.nvmlInit()
    except Exception:
        return None
    return pynvml


def ask_nvml(call: str, *arguments: Any) -> Any:
    """Return what NVML answers, or None where it is missing or refuses."""
    library = nvml()
    if library is None:
        return None
    try:
        return getattr(library, call)(*arguments)
    except library.NVMLError:
        return None


def nvml_handle(device: torch.device) -> Any:
    """Return NVML's handle of a GPU, or None."""
    uuid = torch.cuda.get_device_properties(device).uuid
    return ask_nvml("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}")


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "threads": torch.get_num_threads(),
        "architecture": platform.machine(),
        "kernel": platform.release(),
    }


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), None)


def _software() -> dict[str, Any]:
    commit, dirty = _git()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": version("triton"),
        "fuseline": version("fuseline"),
        "native_packages": {p: found for p in NATIVE_PACKAGES if (found := version(p))} or None,
        "binary_sha256": _binary_hash(),
        "commit": commit,
        "dirty": dirty,
        "plugins": plugins.versions() or None,
        "variables": {name: _without_home(value) for name, value in variables.current().items()},
    }


def _native(device: str) -> list[str] | None:
    """Return which of torch's own operators, the baseline `native`, run on whose kernels instead,
    if any do.
    """
    others = [o for o in fuseline.status().overridden if o.device == device]
    return [f"aten::{o.name} by {o.by}" for o in others] or None


def version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _without_home(value: str) -> str:
    """Keep settings; a path says nothing about speed and may name a user."""
    return "(a path)" if os.sep in value else value


def _binary_hash() -> str | None:
    path = native.status().path
    if path is None:
        return None
    found = path.stat()
    return _hash_of(path, found.st_mtime_ns, found.st_size)


@cache
def _hash_of(path: Path, changed_ns: int, size: int) -> str:
    """Return the hash of a file, which is read once as long as it does not change."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _git() -> tuple[str | None, bool | None]:
    """Return the commit of the source tree and whether it differs from it, if it is one."""
    root = PACKAGE.parent.parent
    if not (root / ".git").exists() or PACKAGE.parent.name != "src":
        return None, None
    commit = _run_git(root, "rev-parse", "HEAD")
    if not commit:
        return None, None
    return commit, bool(_run_git(root, "status", "--porcelain", "--untracked-files=no"))


def _run_git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _gpu(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    handle = nvml_handle(device)
    limit = handle and ask_nvml("nvmlDeviceGetPowerManagementLimit", handle)
    return {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "gpu_memory_bytes": properties.total_memory,
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "driver": driver(),
        "max_sm_mhz": handle and ask_nvml("nvmlDeviceGetMaxClockInfo", handle, 1),
        "max_memory_mhz": handle and ask_nvml("nvmlDeviceGetMaxClockInfo", handle, 2),
        "power_limit_w": limit and limit / 1000,
    }
