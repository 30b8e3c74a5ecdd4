"""Eager calls of the binary's operators in C++: a module for one torch and one Python, or none."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fuseline.core.native import REBUILD
from fuseline.core.saving import Plan

NAME = "_host"
FORMAT = 2  # of what the module is given
OFF = "FUSELINE_HOST"  # the variable which, as "python", keeps it out


def file_name() -> str:
    """Return the name of the module's file for this torch and this Python."""
    return f"{NAME}-torch{torch.__version__}{EXTENSION_SUFFIXES[0]}"


@cache
def module() -> ModuleType | str:
    """Return the module, or why there is none."""
    if os.environ.get(OFF) == "python":
        return f"{OFF} is python"
    package = importlib.util.find_spec("fuseline")
    folders = package.submodule_search_locations if package else None
    path = next((p for f in folders or () if (p := Path(f) / file_name()).is_file()), None)
    if path is None:
        return f"no {file_name()} in the package: a build from source makes it, a release has none"
    loader = ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    try:
        made = importlib.util.module_from_spec(spec)
        loader.exec_module(made)
    except ImportError as error:
        return f"{path.name} does not load: {error}"
    if made.FORMAT != FORMAT:
        return f"{path.name} is another version's; {REBUILD}"
    return made


def call(python: Callable[..., Any], plan: Plan | None, run: Any, *pair: Any) -> Callable[..., Any]:
    """Return what calls an operator of the binary in eager code: in C++ where the module is.

    python  variant.guarded's function, which serves whatever is out of the ordinary
    plan    what the forward saves for the backward; None: python differentiates
    run     the operator without an autograd rule; pair: its backward, before it the forward that
            saves, where that is another
    """
    found = module()
    if isinstance(found, str):
        return python
    told = plan and (
        f"{plan.name}Backward",
        (*pair[:-1], run)[0].name(),
        pair[-1].name(),
        plan.gradient.outputs,
        plan.kept,
        plan.tensors,
        plan.taken,
        plan.gives,
        plan.sources,
        plan.works,
        plan.beyond,
        plan.alike,
        plan.by_formula,
    )
    made: Callable[..., Any] = found.call(python, run.name(), told)
    return made


def enter(python: Callable[..., Any]) -> Callable[..., Any]:
    """Return what serves the eager half of operator.call: in C++ where the module is, which leaves
    to `python` what it does not serve, and whatever raises.
    """
    found = module()
    return python if isinstance(found, str) else found.enter(python)  # type: ignore[no-any-return]
