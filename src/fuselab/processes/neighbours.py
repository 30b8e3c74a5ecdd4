"""The folder of a user's file on `sys.path`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def importable(file: Path) -> Iterator[None]:
    """Have the file's neighbours found first while it runs, as Python has it for a script.

    After that they are found last: what torch imports late, and a process that is spawned imports
    again, must not be a neighbour that is called like a module of Python's.
    """
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)
