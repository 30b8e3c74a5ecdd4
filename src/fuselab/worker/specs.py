"""Where OpSpecs come from: the table of this package, or a user's own file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fuseline import table
from fuseline.core.spec import OpSpec

TABLE = ""


class SpecError(ValueError):
    """A file that cannot be imported or holds no OpSpec; the text says which."""


@cache
def load(source: str = TABLE) -> dict[str, OpSpec]:
    """Return the OpSpecs by name: of the table for "", else of the Python file at that path."""
    if source == TABLE:
        return dict(table.load())
    specs: dict[str, OpSpec] = {}
    for spec in _collect(vars(_import(Path(source))).values()):
        if specs.setdefault(spec.name, spec) is not spec:
            raise SpecError(f"{source}: two OpSpecs are named {spec.name!r}")
    if not specs:
        raise SpecError(f"{source}: no OpSpec at module level, nor a list of them")
    return specs


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        raise SpecError(f"{path}: no such file")
    name = f"fuselab_user_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise SpecError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        found.loader.exec_module(module)
    except Exception as error:
        raise SpecError(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _collect(values: Any) -> Iterator[OpSpec]:
    for value in list(values):
        if isinstance(value, OpSpec):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, OpSpec))
