"""Every public callable has a docstring that names its arguments and says what it gives."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import fuselab
import fuseline
import fuseline.testing
from fuseline import nn

ALIASES = {"Direction", "Inputs"}
PUBLIC: dict[str, Callable[..., Any]] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (fuseline, fuseline.testing, fuselab)
    for name in module.__all__
    if callable(getattr(module, name)) and name not in ALIASES
} | {
    f"fuseline.nn.{name}": value
    for name, value in vars(nn).items()
    if inspect.isclass(value) and value.__module__ == "fuseline.nn"
}
OPERATORS = [name for name in fuseline.ops.__all__ if callable(getattr(fuseline, name, None))]


def _arguments(public: Callable[..., Any]) -> list[str]:
    if dataclasses.is_dataclass(public):
        return [
            field.name for field in dataclasses.fields(public) if not field.name.startswith("_")
        ]
    parameters = inspect.signature(public).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_callable_names_its_arguments(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert len(text) > 40, f"{name} has no docstring"
    missing = [a for a in _arguments(PUBLIC[name]) if not re.search(rf"\b{a}\b", text)]
    assert missing == [], f"{name}: its docstring does not name {', '.join(missing)}"


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_says_formula_shapes_dtypes_backward_and_errors(name: str) -> None:
    text = inspect.getdoc(getattr(fuseline, name)) or ""
    assert re.search(r"^[a-z, ]+ = |^[a-z]+ \*?= ", text, re.MULTILINE), "no formula"
    for words in ("float32", "Returns", "Raises", "backward|Forward only|gradient"):
        assert re.search(words, text), f"{name}: nothing about {words}"
