"""The lab: checks, measures, compares and reports any PyTorch operator."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuselab.notebook import Results, compare

__all__ = ["Results", "compare"]

# Hidden from type checkers, which would take any other name for granted.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load the notebook's part, and torch with it, when it is first asked for."""
        if name in __all__:
            before = set(os.environ)
            module = importlib.import_module("fuselab.notebook")
            # Importing torch's compiler leaves the folder of its cache there.
            for added in os.environ.keys() - before:
                del os.environ[added]
            return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
