"""fuselab trace: one call, from the Python function to the kernel, forward and backward.

`walk` is computed from the dispatcher's tables, `events` are observed.
"""
