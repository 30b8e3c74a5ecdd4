"""Lets the tests here import those of the operators, and compiles kernels for them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from cuda_on_cpu.sources import CUDA, CXX, HERE, SOURCE, copy_headers


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda_on_cpu")
    copy_headers(folder)
    operators = [SOURCE / "ops" / name for name in ("layer_norm", "bias_gelu")]
    include = [f"-I{p}" for p in (folder, HERE, *operators)]

    def library(name: str) -> ctypes.CDLL:
        command = [CXX, "-std=c++17", "-Og", "-w", "-shared", "-fPIC", *include]
        command += ["-U_FORTIFY_SOURCE"]  # whose longjmp goes up a stack only
        # A GPU reads words at multiples of their size only.
        command += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
        command += ["-fno-gnu-unique"]  # grid.cpp has other variables of the same names
        command += ["-isystem", CUDA / "include", HERE / f"{name}.cpp", "-o", folder / name]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(folder / name))

    return library
