"""Running a user's Python file as a module."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

from fuselab.processes.neighbours import importable


def execute(path: Path, name: str) -> ModuleType:
    """Run the file as the module `name` and return it; raises what the file raises.

    Its neighbours can be imported, and what it prints goes to stderr: stdout is for our own words.
    """
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    with importable(path), redirect_stdout(sys.stderr):
        found.loader.exec_module(module)
    return module
