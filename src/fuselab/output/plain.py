"""Text for a terminal, which shows it and does not obey it."""

from __future__ import annotations

import sys


def plain(text: str) -> str:
    """Return text on one line without control characters."""
    return "".join(char if char.isprintable() else " " for char in text)


def counted(count: int, noun: str) -> str:
    """Return a number of things; the noun's plural ends in s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def say(line: str) -> None:
    """Write a line to standard error at once."""
    print(line, file=sys.stderr, flush=True)
