"""Text that a terminal shows and does not obey."""

from __future__ import annotations


def plain(text: str) -> str:
    """Return text on one line without control characters."""
    return "".join(char if char.isprintable() else " " for char in text)
