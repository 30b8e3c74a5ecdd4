"""The verbs: one file each, `run(...)` returns the exit code; here what they share."""
