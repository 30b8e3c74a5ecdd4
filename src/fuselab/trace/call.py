"""The call that is traced: an expression, the names that it may use, and what it is made with."""

from __future__ import annotations

import ast
import inspect
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import fuseline
from fuselab.errors import LabError
from fuselab.planning.plan import PlanError
from fuselab.processes.neighbours import importable

UNDER: dict[str, Callable[[str], AbstractContextManager[Any]]] = {
    "autocast": lambda device: torch.autocast(device, torch.bfloat16),
    "inference_mode": lambda _: torch.inference_mode(),
    "no_grad": lambda _: torch.no_grad(),
}


class CallError(LabError, RuntimeError):
    """The user's call, or its setup, raised; the text says what and where it stood."""


@dataclass(frozen=True)
class Call:
    """An expression, ready to run.

    expression  Python
    run         evaluates it; what raises is a CallError
    under       names of the contexts that it is to be run within
    device      of the names that are there without a setup
    tensors     of the names in it, parameters of modules among them
    function    what it calls, or "" if that has no name
    place       of that function's definition, file:line, or "" if it is not written in Python
    """

    expression: str
    run: Callable[[], Any]
    under: tuple[str, ...]
    device: str
    tensors: tuple[torch.Tensor, ...]
    function: str
    place: str

    def contexts(self) -> ExitStack:
        """Return the contexts of `under`, entered; closing it leaves them."""
        stack = ExitStack()
        for name in self.under:
            stack.enter_context(UNDER[name](self.device.partition(":")[0]))
        return stack


def names(device: str) -> dict[str, Any]:
    """Return the names an expression has without a setup: x is 4 x 64, w is 64, both fp32."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(4, 64, device=device, generator=generator, requires_grad=True)
    w = torch.randn(64, device=device, generator=generator, requires_grad=True)
    return {"torch": torch, "F": F, "nn": torch.nn, "fuseline": fuseline, "x": x, "w": w}


def prepare(
    expression: str, *, setup: str | None = None, under: tuple[str, ...] = (), device: str = "cpu"
) -> Call:
    """Return the call of an expression, after the file `setup` was run for its names.

    Raises PlanError for what is not an expression or no file, CallError for what the setup raises.
    """
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        code = compile(tree, "<CALL>", "eval")
    except SyntaxError as error:
        raise PlanError(
            f"CALL: got {expression!r}, expected a Python expression ({error.msg})"
        ) from error
    space = names(device) | (_names_of(setup) if setup else {})

    def run() -> Any:
        with told("CALL"):
            return eval(code, space)  # noqa: S307  the user's own expression, on their machine

    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    tensors = tuple(t for name in sorted(used & space.keys()) for t in _tensors(space[name]))
    function, place = _function(tree.body, space)
    return Call(expression.strip(), run, under, device, tensors, function, place)


def _names_of(setup: str) -> dict[str, Any]:
    if not Path(setup).is_file():
        raise PlanError(f"--setup: got {setup!r}, expected a Python file")
    with importable(Path(setup)), told(f"--setup {setup}"):
        return runpy.run_path(setup)


@contextmanager
def told(what: str) -> Iterator[None]:
    """Raise what the user's code raises as a CallError, and have it print to standard error."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        raise CallError(f"{what}: {type(error).__name__}: {error}") from error


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _function(node: ast.expr, space: dict[str, Any]) -> tuple[str, str]:
    """Return the name and the place of what a call `a.b(...)` calls."""
    if not isinstance(node, ast.Call):
        return "", ""
    named: ast.expr = node.func
    while isinstance(named, ast.Attribute):
        named = named.value
    if not isinstance(named, ast.Name):
        return "", ""
    value: Any = space.get(named.id)
    for part in ast.unparse(node.func).split(".")[1:]:
        value = getattr(value, part, None)
    return ast.unparse(node.func), place(value)


def place(function: Any) -> str:
    """Return file:line of a function's or a module's definition; "" where it is not Python's."""
    try:
        if isinstance(function, torch.nn.Module):
            function = type(function).forward
        code = inspect.unwrap(function)
        return f"{inspect.getsourcefile(code)}:{inspect.getsourcelines(code)[1]}"
    except (TypeError, OSError, AttributeError):
        return ""
