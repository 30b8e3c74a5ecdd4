"""Exit codes of every verb."""

OK = 0
FAILED = 1
USAGE = 2
NO_DATA = 3
INTERRUPTED = 130
