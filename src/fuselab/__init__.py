"""The lab: checks, measures, compares and reports any PyTorch operator."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuselab.fusion.assertion import assert_fused
    from fuselab.notebook import Results, compare
    from fuselab.records.frames import Run, read

__all__ = ["Results", "Run", "assert_fused", "compare", "read"]
_HOMES = {"assert_fused": "fusion.assertion", "Run": "records.frames", "read": "records.frames"}

# Hidden from type checkers, which would take any other name for granted.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load a function's part of the lab, and torch with it, at its first use."""
        if name in __all__:
            before = set(os.environ)
            module = importlib.import_module(f"fuselab.{_HOMES.get(name, 'notebook')}")
            # Importing torch's compiler leaves the folder of its cache there.
            for added in os.environ.keys() - before:
                del os.environ[added]
            return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
