"""The operator table: finds every ops/<op>/spec.py. The only folder walk of the library."""

from __future__ import annotations

import importlib
import pkgutil

from fuseline import ops
from fuseline.core.specs.spec import OpSpec


def load() -> dict[str, OpSpec]:
    """Return operator name -> its spec, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(ops.__path__) if module.ispkg)
    return {name: importlib.import_module(f"{ops.__name__}.{name}.spec").SPEC for name in names}
