"""The function to explain, its sizes and its inputs: from a user's file or a shipped example."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuselab.plan import PlanError

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
        tree = ast.parse(file.read_text())
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        found |= {name: file for name in names if not name.endswith("inputs")}
    return found


def locate(text: str) -> tuple[Path, str]:
    """Return file and function of FILE.py:FUNCTION or of an example; PlanError if neither."""
    file, colon, name = text.rpartition(":")
    if colon and Path(file).is_file():
        return Path(file), name
    if not colon and text in examples():
        return examples()[text], text
    raise PlanError(
        f"FUNCTION: got {text!r}, expected FILE.py:FUNCTION or one of: {', '.join(examples())}"
    )


def load(file: Path, name: str, device: str) -> Target:
    """Run the file and return its function; PlanError for what it lacks.

    The file has `NAME(*arguments)`, `inputs(size, device)` -> arguments, and `SIZES`; `NAME_inputs`
    and `NAME_SIZES` go before those.
    """
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise PlanError(f"FUNCTION: got {str(file)!r}, expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    space = vars(module)
    function = space.get(name)
    if not callable(function):
        raise PlanError(f"FUNCTION: {file} has no function {name!r}")
    inputs = space.get(f"{name}_inputs", space.get("inputs"))
    sizes = space.get(f"{name}_SIZES", space.get("SIZES"))
    if not callable(inputs) or not sizes:
        raise PlanError(f"FUNCTION: {file} needs inputs(size, device) and SIZES for {name}")
    line = inspect.getsourcelines(inspect.unwrap(function))[1]
    return Target(name, function, lambda size: inputs(size, device), tuple(sizes), f"{file}:{line}")
