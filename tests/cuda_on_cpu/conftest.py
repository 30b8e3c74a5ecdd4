"""Lets the tests here import those of the operators, and compiles kernels for them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from cuda_on_cpu.sources import CUDA, CXX, HERE, SOURCE, copy_headers

# Libraries of the last run, two minutes of the compiler, by all that they are made of.
KEPT = HERE.parents[1] / "build/cuda_on_cpu"
FLAGS = ["-std=c++17", "-Og", "-w", "-shared", "-fPIC"]
FLAGS += ["-U_FORTIFY_SOURCE"]  # whose longjmp goes up a stack only
# A GPU reads words at multiples of their size only.
FLAGS += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
FLAGS += ["-fno-gnu-unique"]  # grid.cpp has other variables of the same names


def _made_of(name: str) -> str:
    """A hash of the compiler, its flags, CUDA's headers, and every file that may be included."""
    compiler = subprocess.run([CXX, "--version"], capture_output=True, check=True).stdout
    cuda = [(p.name, p.stat().st_size) for p in sorted((CUDA / "include").glob("*.h*"))]
    found = hashlib.sha256(repr((compiler, FLAGS, str(CUDA), cuda)).encode())
    headers = (p for folder in (HERE, SOURCE) for p in folder.rglob("*.*h"))
    for path in (*sorted(headers), HERE / f"{name}.cpp", HERE / "sources.py", Path(__file__)):
        found.update(str(path.relative_to(HERE.parents[1])).encode() + path.read_bytes())
    return found.hexdigest()[:32]


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda_on_cpu")
    copy_headers(folder)
    operators = [SOURCE / "ops" / name for name in ("layer_norm", "bias_gelu")]
    include = [f"-I{p}" for p in (folder, HERE, *operators)]

    def library(name: str) -> ctypes.CDLL:
        kept = KEPT / f"{name}-{_made_of(name)}.so"
        if not kept.exists():
            command = [CXX, *FLAGS, *include, "-isystem", CUDA / "include"]
            KEPT.mkdir(parents=True, exist_ok=True)
            beside = kept.with_suffix(f".{os.getpid()}")
            subprocess.run([*command, HERE / f"{name}.cpp", "-o", beside], check=True)
            for old in KEPT.glob(f"{name}-*.so"):
                old.unlink()
            beside.rename(kept)
        return ctypes.CDLL(str(kept))

    return library
