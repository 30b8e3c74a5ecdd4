"""Builds rmsnorm_classic._C against the installed torch; the rest is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension
from torch.version import cuda

# CUDAExtension needs a torch with CUDA and an nvcc of the same major version.
with_cuda = cuda is not None and CUDA_HOME is not None
sources = ["csrc/binding.cpp", "csrc/cpu.cpp"]
flags = {"cxx": ["-O3"], "nvcc": ["-O3"]}
if with_cuda:
    sources.append("csrc/kernel.cu")
    flags = {side: [*some, "-DWITH_CUDA"] for side, some in flags.items()}

extension = CUDAExtension if with_cuda else CppExtension
shared = str(Path(__file__).resolve().parents[1] / "csrc")
setup(
    packages=["rmsnorm_classic"],
    ext_modules=[
        extension("rmsnorm_classic._C", sources, include_dirs=[shared], extra_compile_args=flags)
    ],
    cmdclass={"build_ext": BuildExtension},
)
