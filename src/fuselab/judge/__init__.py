"""`fuselab judge`: other people's kernels, as pairs of files in KernelBench's form."""
