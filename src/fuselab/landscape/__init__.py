"""The landscape of fuselab tune: every tile's time, and what its kernels take of the GPU."""
