"""Fuseline's C++ kernels in JAX, through jax.ffi, on the CPU; needs the extra `jax`."""

from fuseline.jax.rms_norm import rms_norm

__all__ = ["rms_norm"]
