"""The function to explain, its sizes and its inputs: from a user's file or a shipped example."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuselab.planning.plan import PlanError, unknown
from fuselab.processes.neighbours import importable

EXAMPLES = Path(__file__).with_name("examples")


@dataclass(frozen=True)
class Target:
    """A function with the arguments for each size, and the line of its definition."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[Any], Sequence[Any]]
    sizes: tuple[Any, ...]
    place: str


def examples() -> dict[str, Path]:
    """Return the shipped examples: function -> file."""
    found: dict[str, Path] = {}
    for file in sorted(EXAMPLES.glob("[a-z]*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        found |= {name: file for name in names if not name.endswith("inputs")}
    return found


def locate(text: str) -> tuple[Path, str]:
    """Return file and function of FILE.py:FUNCTION or of an example; PlanError if neither."""
    file, colon, name = text.rpartition(":")
    if colon and Path(file).is_file():
        return Path(file), name
    if colon:
        raise PlanError(f"FUNCTION: got {text!r}, but there is no file {file!r}")
    if text.endswith(".py"):
        raise PlanError(f"FUNCTION: got {text!r}, a file alone; expected {text}:FUNCTION")
    if text in examples():
        return examples()[text], text
    raise unknown("FUNCTION", text, ("FILE.py:FUNCTION", *examples()))


def load(file: Path, name: str, device: str) -> Target:
    """Run the file and return its function; PlanError for what it lacks.

    The file has `NAME(*arguments)`, `inputs(size, device)` -> arguments, and `SIZES`; `NAME_inputs`
    and `NAME_SIZES` go before those.
    """
    # A name of its own, as a file may be called like a library's.
    name_of_module = f"explained_{file.stem}"
    spec = importlib.util.spec_from_file_location(name_of_module, file)
    if spec is None or spec.loader is None:
        raise PlanError(f"FUNCTION: got {str(file)!r}, expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name_of_module] = module
    with importable(file):
        spec.loader.exec_module(module)
    space = vars(module)
    function = space.get(name)
    if not callable(function):
        raise PlanError(f"FUNCTION: {file} has no function {name!r}")
    inputs = space.get(f"{name}_inputs", space.get("inputs"))
    sizes = space.get(f"{name}_SIZES", space.get("SIZES"))
    if not callable(inputs) or not isinstance(sizes, Iterable) or not sizes:
        raise PlanError(f"FUNCTION: {file} needs inputs(size, device) and SIZES for {name}")

    def arguments(size: Any) -> Sequence[Any]:
        found = inputs(size, device)
        if not isinstance(found, (tuple, list)):
            kind = type(found).__name__
            raise PlanError(f"inputs({size!r}, {device!r}) of {file}: got {kind}, expected a tuple")
        return found

    return Target(name, function, arguments, tuple(sizes), _place(function, file))


def _place(function: Callable[..., Any], file: Path) -> str:
    try:
        return f"{file}:{inspect.getsourcelines(inspect.unwrap(function))[1]}"
    except (TypeError, OSError):  # an object that is called, a module for instance
        return str(file)
