"""Kernels of attention, and what their launches depend on."""
