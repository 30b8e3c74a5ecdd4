"""Standard streams that are closed, full, or know few characters."""

from __future__ import annotations

import io
import os
import sys

# What a shell reports of a program that SIGPIPE ended; torch and Python ignore that signal.
CLOSED_PIPE = 141


class ClosedPipeError(Exception):
    """Whoever read our output is gone, `| head` for instance.

    No OSError: click would end the process with 1 at that, which here means failed.
    """


def prepare() -> None:
    """Open the standard streams that are closed, and have them take every character.

    In the place of a closed one, the next file that is opened would get what is printed.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def settle() -> None:
    """Write what is still buffered; what cannot be written goes nowhere.

    Python would otherwise complain of it when it exits, and exit with 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
