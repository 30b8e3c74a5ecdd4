"""Compiles the handlers against the installed jaxlib, once a process, and registers them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import jax

from fuseline.core import native

TARGETS = ("fuseline_jax_rms_norm_fwd", "fuseline_jax_rms_norm_bwd")
KERNELS = ("fuseline_rms_norm_fwd", "fuseline_rms_norm_bwd")
PLATFORMS = {"cpu": "cpu", "cuda": "CUDA"}  # of our names: XLA's


@cache
def register() -> None:
    """Make the targets known to XLA; RuntimeError without the binary or without a compiler."""
    binary = native.status()
    if binary.handle is None:
        raise RuntimeError(f"fuseline.jax: {binary.why_not('cpu')}")
    library = _compiled()
    kernels = {p: [_address(binary.handle, f"{k}_{p}") for k in KERNELS] for p in PLATFORMS}
    library.fuseline_set_kernels(*(address for pair in kernels.values() for address in pair))
    for platform, addresses in kernels.items():
        for name in TARGETS if all(addresses) else ():
            handler = jax.ffi.pycapsule(getattr(library, f"{name}_{platform}"))
            jax.ffi.register_ffi_target(name, handler, platform=PLATFORMS[platform])


def _address(binary: ctypes.CDLL, name: str) -> ctypes.c_void_p:
    """Return the kernel's address; none in a binary that was built without CUDA."""
    try:
        return ctypes.c_void_p.in_dll(binary, name)
    except ValueError:
        return ctypes.c_void_p()


def _compiled() -> ctypes.CDLL:
    source = Path(__file__).with_name("handlers.cpp")
    compiler = os.environ.get("CXX", "c++")
    with tempfile.TemporaryDirectory(prefix="fuseline-") as folder:
        out = Path(folder) / "handlers.so"
        command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared"]
        command += ["-isystem", jax.ffi.include_dir(), str(source), "-o", str(out)]
        try:
            subprocess.run(
                command, check=True, capture_output=True, encoding="utf-8", errors="replace"
            )
        except OSError as error:
            raise RuntimeError(
                f"fuseline.jax needs a C++ compiler: {compiler} cannot be run ({error.strerror}); "
                "install g++ or set CXX"
            ) from error
        except subprocess.CalledProcessError as error:
            raise RuntimeError(
                f"fuseline.jax: {compiler} does not compile {source} against jaxlib "
                f"{jax.lib.__version__}:\n{error.stderr}"
            ) from error
        return ctypes.CDLL(str(out))  # stays loaded when its file is gone
