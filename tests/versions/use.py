"""What a table of private names is made of, and how a name is looked up."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Probe = Callable[[Any], object]


@dataclass(frozen=True, eq=False)
class Use:
    """Private names that serve one purpose.

    remedy  what to do when a torch has one of them no more, or otherwise
    probes  name -> what is true of it as long as it is what src/ takes it for; may raise
    beyond  names of them that the scan cannot see (attributes without an underscore, settings that
            are passed by name) -> a word by which src/ uses it
    """

    purpose: str
    remedy: str
    probes: Mapping[str, Probe]
    beyond: Mapping[str, str] = field(default_factory=dict)


def exists(found: Any) -> bool:
    """Say that the name is there, which is all that is used of it."""
    return True


def takes(*names: str) -> Probe:
    """Return a probe: the parameters begin with these."""

    def probe(found: Any) -> bool:
        parameters = [p for p in inspect.signature(found).parameters if p != "self"]
        assert tuple(parameters[: len(names)]) == names, f"its parameters are {parameters}"
        return True

    return probe


def has(*names: str) -> Probe:
    """Return a probe: it has these attributes."""

    def probe(found: Any) -> bool:
        missing = [name for name in names if not hasattr(found, name)]
        assert not missing, f"it has no {', '.join(missing)}"
        return True

    return probe


def mentions(*words: str) -> Probe:
    """Return a probe: its source has these words, where attributes are made by instances."""

    def probe(found: Any) -> bool:
        source = inspect.getsource(found)
        missing = [word for word in words if word not in source]
        assert not missing, f"its source has no {', '.join(missing)}"
        return True

    return probe


def arguments(*names: str) -> Probe:
    """Return a probe: the arguments of an operator's default overload begin with these."""

    def probe(found: Any) -> bool:
        seen = tuple(a.name for a in found.default._schema.arguments)
        assert seen[: len(names)] == names, f"its arguments are {seen}"
        return True

    return probe


def resolve(name: str) -> Any:
    """Return what a dotted name stands for; raises AttributeError or ImportError."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:i]))
        found = getattr(found, part)
    return found
