"""What ends a command with one line on standard error: the base of the lab's own errors."""

from __future__ import annotations


class LabError(Exception):
    """An error that the user can mend; `code` is the exit code of a command that it ends."""

    code = 1
