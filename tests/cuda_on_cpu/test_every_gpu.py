"""nvcc takes the kernels for GPUs that no build here is for: CI and `make` build for one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

SOURCE = Path(__file__).parents[2] / "src"
NORMS = '#include "fuseline/cuda/norm/rms_cuda_launch.cuh"\nFUSELINE_RMS_INSTANTIATE'
# One operator of one type, which has rows and columns of every kind: no code of another is a GPU's.
SOFTMAX = """#include "fuseline/cuda/columns/column_tensors.cuh"
#include "fuseline/cuda/rows/softmax_cuda.cuh"
#include "fuseline/softmax_aten.h"
void along(fuseline::Tensor& y, const fuseline::Tensor& x, int64_t dim) {
  fuseline::rows::run_along(fuseline::softmax::Softmax<__nv_bfloat16>{}, dim, y, x);
}
"""
# Between them they include all headers of the primitives.
UNITS = {
    "copies": '#include "fuseline/primitives/copies.cu"\n',
    "bias_gelu": '#include "fuseline/ops/bias_gelu/impl_cuda.cu"\n',
    "pointwise_chain": '#include "fuseline/ops/pointwise_chain/impl_cuda.cu"\n',
    "rms_norm": f"{NORMS}(float, false)\n",  # as cmake/units.cmake writes them
    "rms_norm_fp8": f"{NORMS}_E4M3(float)\n",
    "softmax": SOFTMAX,
}
NVCC = shutil.which("nvcc")


@pytest.mark.slow
@pytest.mark.skipif(not NVCC, reason="no nvcc")
@pytest.mark.parametrize("operator", UNITS)
def test_kernels_compile_for_the_newest(operator: str, tmp_path: Path) -> None:
    source, ptx = tmp_path / "kernels.cu", tmp_path / "kernels.ptx"
    source.write_text(UNITS[operator])
    command = [NVCC, "-ptx", "-arch=compute_100", "-std=c++17", source, "-o", ptx]
    command += ["-Xcicc", "-O0"]  # what optimizes refuses nothing, and takes longest
    command += [f"-I{SOURCE}", f"-I{SOURCE}/fuseline/primitives/include"]
    command += ["-isystem", Path(torch.__file__).parent / "include"]
    command += ["-DTORCH_STABLE_ONLY", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
