"""Fuseline's C++ and CUDA kernels in JAX, through jax.ffi; needs the extra `jax`."""

from fuseline.jax.rms_norm import rms_norm

__all__ = ["rms_norm"]
