"""What a tool writes into a page, between two markers."""

from __future__ import annotations

import re
from pathlib import Path


def written(page: Path, begin: str, end: str) -> str:
    """Return what stands between the markers, an empty line after the first and before the last."""
    found = re.search(f"{re.escape(begin)}\n\n(.*)\n{re.escape(end)}", page.read_text(), re.DOTALL)
    assert found is not None, f"{page} has no {begin!r} before {end!r}"
    return found.group(1)


def write(page: Path, begin: str, end: str, text: str) -> None:
    """Put a text between the markers."""
    old = page.read_text()
    page.write_text(f"{old.partition(begin)[0]}{begin}\n\n{text}\n{end}{old.partition(end)[2]}")
