"""Where OpSpecs come from: the table of this package, plug-ins, or a user's own file."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fuselab import environment, plugins
from fuselab.errors import LabError
from fuselab.planning.plan import CEILING
from fuselab.planning.wild import PREFIX
from fuselab.worker.implementations.baselines import MADE
from fuselab.worker.operators import pairs, recorded, wild_inputs
from fuselab.worker.operators.user_file import execute
from fuseline import table, testing
from fuseline.core.selection import tuned
from fuseline.core.selection.tuned import Table, TunedError
from fuseline.core.specs import spec_fields
from fuseline.core.specs.spec import Case, Implementation, OpSpec, Tuning
from fuseline.core.specs.spec_fields import OpSpecError
from fuseline.testing.place import place, told

TABLE = ""
# Before a source: its operators with their tiles in the place of the implementations.
TILES = "tiles of "
RESERVED = (CEILING, *MADE)
_KEYWORD = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")


class SpecError(LabError, ValueError):
    """A file that cannot be imported or holds no OpSpec; the text says which."""

    code = 2


@cache
def load(source: str = TABLE) -> dict[str, OpSpec]:
    """Return the OpSpecs by name: of table and plug-ins for "", of a pair, of a suite of recorded
    calls, else of a file.
    """
    if source.startswith(pairs.SOURCE):
        return {pairs.NAME: pairs.spec(pairs.Pair.of(source))}
    if source.startswith(recorded.SOURCE):
        return recorded.load(source, load())
    if source.startswith(TILES):
        return {n: _tiles(spec) for n, spec in load(source.removeprefix(TILES)).items()}
    if source == TABLE:
        return table.load() | _plugged()
    specs: dict[str, OpSpec] = {}
    for spec in _collect(vars(_import(Path(source))).values()):
        if specs.setdefault(spec.name, spec) is not spec:
            raise SpecError(f"{source}: two OpSpecs are named {spec.name!r}")
    if not specs:
        raise SpecError(f"{source}: no OpSpec at module level, nor a list of them")
    for spec in specs.values():
        _validate(source, spec)
    return specs


def _plugged() -> dict[str, OpSpec]:
    """Return the operators of plug-ins by name; those that cannot be stored are refused."""

    def name(spec: OpSpec) -> str:
        _validate("fuselab.specs", spec)
        return spec.name

    found = plugins.load(plugins.SPECS, OpSpec, name, table.load())
    return {given.value.name: given.value for given in found.values()}


def case(spec: OpSpec, name: str) -> tuple[OpSpec, Case]:
    """Return the case of that name, of the suite wild too, and the spec that makes its inputs."""
    if name.startswith(PREFIX):
        return wild_inputs.problem(spec, name)
    return spec, next(c for c in spec.cases if c.name == name)


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
        try:
            return tuned.find(op, tuning.shipped, gpu)
        except TunedError as error:
            raise SpecError(str(error)) from error


def _validate(source: str, spec: OpSpec) -> None:
    """Refuse names that mean something else in the store."""
    where = f"{source}: operator {spec.name!r}"
    names = [("operator", spec.name), *(("case", case.name) for case in spec.cases)]
    names += [("implementation", impl.name) for impl in spec.implementations]
    for kind, name in names:
        if "/" in name:
            raise SpecError(f"{where}: {kind} {name!r}, expected a text without '/'")
    if spec.name == CEILING:
        raise SpecError(f"{where}: this name is the lab's own, choose another")
    try:
        for suite in spec.suite_dtypes:
            spec_fields.one_of(f"operator {spec.name!r}", "suite_dtypes", suite, spec.suites)
    except OpSpecError as error:
        raise SpecError(f"{source}: {error}") from error
    for impl in spec.implementations:
        if impl.name in RESERVED:
            raise SpecError(
                f"{where}: implementation {impl.name!r}, a name that the lab gives its own: "
                f"{', '.join(RESERVED)}"
            )


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        raise SpecError(f"{path}: no such file")
    try:
        return execute(path, f"fuselab_user_{path.stem}")
    except OpSpecError as error:
        raise SpecError(f"{place(error) or path}: {error}") from error
    except (Exception, SystemExit) as error:
        raise SpecError(f"{path}: cannot be imported: {told(error)}{_hint(error)}") from error


def _hint(error: BaseException) -> str:
    """Return the field that was meant by a keyword that a class of `fuseline.testing` lacks."""
    found = _KEYWORD.search(str(error))
    known = getattr(getattr(testing, found[1], None), "__dataclass_fields__", ()) if found else ()
    near = get_close_matches(found[2], known, 1) if found else []
    return f"; did you mean {near[0]!r}?" if near else ""


def _collect(values: Any) -> Iterator[OpSpec]:
    for value in list(values):
        if isinstance(value, OpSpec):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, OpSpec))
