"""Copies of the CUDA headers that a C++ compiler reads, and what compiles them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src/fuseline"
HEADERS = SOURCE / "primitives/include/fuseline"
CXX = os.environ.get("CXX") or shutil.which("g++")
NVCC = shutil.which("nvcc")
ROOTS = [os.environ.get("CUDA_HOME"), NVCC and Path(NVCC).resolve().parents[1], "/usr/local/cuda"]
CUDA = next((Path(r) for r in ROOTS if r and (Path(r) / "include/cuda_bf16.h").exists()), None)


def for_a_cpu(text: str) -> str:
    """What g++ cannot read of CUDA C++: launches, and shared memory of a size known then."""
    shared = r"extern __shared__ __align__\(\d+\) unsigned char (\w+)\[\]"
    text = re.sub(shared, r"unsigned char* const \1 = emulator::shared", text)
    return re.sub(r"(\w+(?:<[\w\s,]*>)?)\s*<<<(.*?)>>>", r"emulator::on(\1, \2)", text, flags=re.S)


def copy_headers(folder: Path, change: Callable[[str], str] = for_a_cpu) -> None:
    """Those of the primitives to fuseline/ and those of operators to ops/."""
    paths = {Path("fuseline") / p.relative_to(HEADERS): p for p in HEADERS.rglob("*.*h")}
    paths |= {p.relative_to(SOURCE): p for p in (SOURCE / "ops").glob("*/impl_cuda*.cuh")}
    for to, path in paths.items():
        (folder / to).parent.mkdir(parents=True, exist_ok=True)
        (folder / to).write_text(change(path.read_text()))
    for name in ("async_packs.cuh", "cluster.cuh", "grid.cuh"):
        assert (folder / "fuseline/cuda" / name).exists()  # what it stands in for
        shutil.copy(HERE / name, folder / "fuseline/cuda")
