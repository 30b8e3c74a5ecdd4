"""What the text of a solution says before it runs."""

from __future__ import annotations

import ast
from pathlib import Path

# An implementation may fail while it is made: that is seen.
_MAKING = ("__init__",)


def catches(path: str) -> list[int]:
    """Return the lines at which functions catch exceptions: a failed kernel is not noticed there.

    Not at module level, where a missing package is met, and not in `__init__`.
    """
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return []  # the process that runs it says so
    found = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name not in _MAKING:
            found += [n.lineno for n in ast.walk(function) if isinstance(n, ast.Try) and n.handlers]
    return sorted(set(found))
