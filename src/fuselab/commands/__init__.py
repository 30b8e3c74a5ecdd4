"""The verbs: one file each, `run(...)` returns the exit code."""
