"""nvcc takes the kernels for GPUs that no build here is for: CI and `make` build for one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

SOURCE = Path(__file__).parents[2] / "src"
# Between them they include all headers of the primitives.
FILES = (
    "bias_gelu/impl_cuda.cu", "pointwise_chain/impl_cuda.cu", "rms_norm/impl_cuda_f32.cu",
    "rms_norm_fp8/impl_cuda_f32.cu", "softmax/impl_cuda.cu",
)  # fmt: skip
NVCC = shutil.which("nvcc")


@pytest.mark.slow
@pytest.mark.skipif(not NVCC, reason="no nvcc")
@pytest.mark.parametrize("file", FILES)
def test_kernels_compile_for_the_newest(file: str, tmp_path: Path) -> None:
    source, ptx = SOURCE / "fuseline/ops" / file, tmp_path / "kernels.ptx"
    command = [NVCC, "-ptx", "-arch=compute_100", "-std=c++17", "-O3", source, "-o", ptx]
    command += [f"-I{SOURCE}", f"-I{SOURCE}/fuseline/primitives/include"]
    command += ["-isystem", Path(torch.__file__).parent / "include"]
    command += ["-DTORCH_STABLE_ONLY", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
