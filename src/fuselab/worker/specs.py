"""Where OpSpecs come from: the table of this package, or a user's own file."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fuselab import environment
from fuselab.plan import CEILING
from fuselab.worker.baselines import BASELINES
from fuseline import table
from fuseline.core import tuned
from fuseline.core.spec import Implementation, OpSpec, Tuning
from fuseline.core.tuned import Table

TABLE = ""
# Before a source: its operators with their tiles in the place of the implementations.
TILES = "tiles of "
RESERVED = (CEILING, *BASELINES)


class SpecError(ValueError):
    """A file that cannot be imported or holds no OpSpec; the text says which."""


@cache
def load(source: str = TABLE) -> dict[str, OpSpec]:
    """Return the OpSpecs by name: of the table for "", else of the Python file at that path."""
    if source.startswith(TILES):
        return {n: _tiles(spec) for n, spec in load(source.removeprefix(TILES)).items()}
    if source == TABLE:
        return dict(table.load())
    specs: dict[str, OpSpec] = {}
    for spec in _collect(vars(_import(Path(source))).values()):
        if specs.setdefault(spec.name, spec) is not spec:
            raise SpecError(f"{source}: two OpSpecs are named {spec.name!r}")
    if not specs:
        raise SpecError(f"{source}: no OpSpec at module level, nor a list of them")
    for spec in specs.values():
        _validate(source, spec)
    return specs


def _tiles(spec: OpSpec) -> OpSpec:
    """Return the operator with all that may be compared on this machine, and eager as yardstick."""
    tuning = spec.tuning
    if tuning is None:
        return spec
    present = present_table(spec.name, tuning, machine())
    unavailable = spec.implementation(tuning.impl).unavailable
    tiles = {
        name: tile
        for key in present.entries
        for row in tuning.classes
        for name, tile in tuning.tiles(key, row, present).items()
    }
    cases = {
        case.name: case
        for row in tuning.classes
        for case in (*tuning.cases(row), *tuning.proofs(row))
    }
    return replace(
        spec,
        implementations=(
            *((spec.eager,) if spec.eager else ()),
            *(Implementation(n, tuning.call(t), "ours", unavailable) for n, t in tiles.items()),
        ),
        cases=tuple(cases.values()),
    )


def machine() -> str:
    """Return what tables call the machine that this process has: its GPU, else its processor."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return str(environment.collect("cpu").get("cpu", "cpu"))


def present_table(op: str, tuning: Tuning, gpu: str) -> Table:
    """Return the launch parameters that the operator uses now."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # who tunes need not be told to
        return tuned.find(op, tuning.shipped, gpu)


def _validate(source: str, spec: OpSpec) -> None:
    """Refuse names that the store could not tell apart, or that mean something else there."""
    where = f"{source}: operator {spec.name!r}"
    if spec.name == CEILING:
        raise SpecError(f"{where}: this name is the lab's own, choose another")
    impls = [impl.name for impl in spec.implementations]
    cases = [case.name for case in spec.cases]
    for kind, names in (("implementation", impls), ("case", cases)):
        for name in names:
            if not isinstance(name, str) or not name or "/" in name:
                raise SpecError(f"{where}: {kind} {name!r}, expected a text without '/'")
            if names.count(name) > 1:
                raise SpecError(f"{where}: two {kind}s are named {name!r}")
    for name in impls:
        if name in RESERVED:
            raise SpecError(
                f"{where}: implementation {name!r}, a name that the lab gives its own: "
                f"{', '.join(RESERVED)}"
            )
    for case in spec.cases:
        if isinstance(case.suites, str):
            raise SpecError(f"{where}: case {case.name!r}: suites is a text, expected a tuple")


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
        with redirect_stdout(sys.stderr):  # stdout is for our own words
            found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise SpecError(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _collect(values: Any) -> Iterator[OpSpec]:
    for value in list(values):
        if isinstance(value, OpSpec):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, OpSpec))
