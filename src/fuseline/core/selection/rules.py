"""Rules for "auto": where another implementation was measured to be faster, or is known to be bad.

A file for an operator and a kind of machine (`sm_90.json`: the GPUs of compute capability 9.0;
`cpu.json`; `any.json`: all of them), in the operator's folder `rules/` or the user's own, which
wins. Each rule says for which calls it is, by facts that metadata alone tell, and its evidence.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fuseline.core.selection.tuned import DIRECTIONS, TunedError, replace_file, user_folder

ANY = "any"
DTYPE = "dtype"
FOLDER = "rules"
OPS = Path(__file__).parents[2] / "ops"
_FIELDS = ("direction", "where", "impl", "evidence", "bad", "report")


@dataclass(frozen=True)
class Fact:
    """Something that metadata tell of a call.

    of        (*args of the forward) -> an int, a bool or a text
    ends      of an int: the last number of each size class that `fuselab tune` distinguishes
    promised  whether the operator promises that a result does not depend on it: no shipped rule may
    """

    of: Callable[..., Any]
    ends: tuple[int, ...] = ()
    promised: bool = False


@dataclass(frozen=True)
class Span:
    """The numbers from `first` to `last`, without an end for None."""

    first: int | None
    last: int | None

    def holds(self, value: Any) -> bool:
        """Return whether the number is one of them; a symbolic size: whether it surely is."""
        first, last = self.first, self.last
        if type(value) is not torch.SymInt:
            return (first is None or value >= first) and (last is None or value <= last)
        # Loaded wherever there are such sizes. It adds no guard: nothing is compiled again.
        surely = torch.fx.experimental.symbolic_shapes.statically_known_true
        return (first is None or surely(value >= first)) and (last is None or surely(value <= last))

    def __str__(self) -> str:
        if self.first is None or self.last is None:
            return f"up to {self.last}" if self.first is None else f"from {self.first}"
        return f"{self.first} to {self.last}"


@dataclass(frozen=True)
class OneOf:
    """Some values, by name."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return " or ".join(str(value).removeprefix("torch.") for value in self.values)


Wanted = Span | OneOf


@dataclass(frozen=True)
class Rule:
    """For some calls, in one direction: implementations in order, or why one must not be taken.

    where     fact -> what it must be
    impl      in order; of a rule that is `bad`: whom it is about
    evidence  what was measured, by whom, for the reader; "ratio": its time over the other's
    bad       what is wrong with it there; "": nothing, it is faster
    report    address of the report of that
    """

    direction: str
    where: Mapping[str, Wanted]
    impl: tuple[str, ...]
    evidence: Mapping[str, Any] = field(default_factory=dict)
    bad: str = ""
    report: str = ""

    def misfit(self, facts: Mapping[str, Fact], *args: Any) -> str | None:
        """Return why the rule is not for a call, or None if it is."""
        for name, wanted in self.where.items():
            value = facts[name].of(*args)
            if not wanted.holds(value):
                said = str(value).removeprefix("torch.")
                return f"{name} is {said}, expected {wanted}"
        return None

    def __str__(self) -> str:
        calls = ", ".join(f"{name} {wanted}" for name, wanted in self.where.items()) or "all calls"
        if self.bad:
            return f"{calls}: {self.bad} ({self.report})"
        told = ", ".join(f"{name} {value}" for name, value in self.evidence.items())
        return f"{calls}: {', then '.join(self.impl)} ({told})"


@dataclass(frozen=True)
class Rules:
    """The rules of an operator on a machine, in order, and where they come from.

    machine  "sm_90", "cpu"; what a file of its own would be called
    source   the files; none: the order alone decides
    """

    machine: str
    source: tuple[Path, ...] = ()
    rules: tuple[Rule, ...] = ()

    def of(self, direction: str) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.direction == direction)


def machine(device_type: str) -> str:
    """Return what the files of a kind of device are called here: that of the current GPU."""
    if device_type != "cuda":
        return device_type
    if not torch.cuda.is_available():
        return "no GPU"
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def user_file(op: str, name: str, kind: str = FOLDER) -> Path | None:
    """Return where a user's own rules lie, beside their launch parameters."""
    folder = user_folder(op)
    return folder / kind / f"{name}.json" if folder else None


def shipped_files(op: str) -> list[Path]:
    """Return the rules of an operator that come with this package."""
    return sorted((OPS / op / FOLDER).glob("*.json"))


def user_files(op: str) -> list[Path]:
    """Return a user's own, as far as their folder can be read."""
    folder = user_folder(op)
    try:
        return sorted((folder / FOLDER).glob("*.json")) if folder else []
    except OSError:
        return []


def find(
    op: str, name: str, facts: Mapping[str, Fact], impls: Collection[str], kind: str = FOLDER
) -> Rules:
    """Return the rules for a machine: the user's file, else the shipped one, and those of all.

    kind: the folder of the files.

    A machine without a file has no others than those of all: what is faster on one generation of
    GPU says nothing about another.
    """
    files = []
    for one in (name, ANY):
        places = (user_file(op, one, kind), OPS / op / kind / f"{one}.json")
        # Unlike Path's, this says no of what lies in a folder that cannot be read.
        files += [file for file in places if file and os.path.isfile(file)][:1]
    found = [rule for file in files for rule in load(file, facts, impls)]
    return Rules(name, tuple(files), tuple(found))


def load(file: Path, facts: Mapping[str, Fact], impls: Collection[str]) -> tuple[Rule, ...]:
    """Return the rules of a file; TunedError, which names file and key, if it has none."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise TunedError(f"{file}: cannot be read: {error}") from error
    rules = found.get("rules") if isinstance(found, dict) else None
    if not isinstance(rules, list):
        raise TunedError(f"{file}: rules: got {rules!r}, expected a list of objects")
    return tuple(_rule(f"{file}: rules[{i}]", one, facts, impls) for i, one in enumerate(rules))


def save(file: Path, name: str, rules: Collection[Rule]) -> None:
    """Write the rules of a machine, one a line, so that a reader never sees half of them."""
    lines = ",\n".join(f"    {json.dumps(_object(rule))}" for rule in rules)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, f'{{\n  "machine": {json.dumps(name)},\n  "rules": [\n{lines}\n  ]\n}}\n')


def _object(rule: Rule) -> dict[str, Any]:
    where = {
        name: [wanted.first, wanted.last]
        if isinstance(wanted, Span)
        else [v if isinstance(v, bool) else str(v).removeprefix("torch.") for v in wanted.values]
        for name, wanted in rule.where.items()
    }
    given = {**vars(rule), "where": where, "impl": list(rule.impl)}
    return {name: value for name, value in given.items() if value or name == "where"}


def _rule(where: str, came: Any, facts: Mapping[str, Fact], impls: Collection[str]) -> Rule:
    if not isinstance(came, dict):
        raise TunedError(f"{where}: got {came!r}, expected an object")
    for name in came:
        _among(f"{where}.{name}", name, _FIELDS)
    _among(f"{where}.direction", came.get("direction"), DIRECTIONS)
    for name in (names := _list(f"{where}.impl", came.get("impl"))):
        _among(f"{where}.impl", name, impls)
    asked = came.get("where")
    if not isinstance(asked, dict):
        raise TunedError(f"{where}.where: got {asked!r}, expected an object of facts")
    for name in asked:
        _among(f"{where}.where.{name}", name, facts)
    for name, kind in (("bad", str), ("report", str), ("evidence", dict)):
        if not isinstance(value := came.get(name, kind()), kind):
            raise TunedError(f"{where}.{name}: got {value!r}, expected a {kind.__name__}")
    # What a rule says must be traceable: to a measurement, or to a report.
    needed = "report" if came.get("bad") else "evidence"
    if not came.get(needed):
        raise TunedError(f"{where}.{needed}: missing")
    return Rule(
        **{
            **came,
            "impl": tuple(names),
            "where": {n: _wanted(f"{where}.where.{n}", n, facts[n], v) for n, v in asked.items()},
        }
    )


def _wanted(where: str, name: str, fact: Fact, came: Any) -> Wanted:
    values = _list(where, came)
    if fact.ends:
        if len(values) != 2 or not all(v is None or type(v) is int for v in values):
            raise TunedError(f"{where}: got {came!r}, expected [first, last], numbers or null")
        return Span(*values)
    if name != DTYPE:
        return OneOf(tuple(values))
    dtypes = [getattr(torch, v, None) if isinstance(v, str) else None for v in values]
    if not all(isinstance(dtype, torch.dtype) for dtype in dtypes):
        raise TunedError(f"{where}: got {came!r}, expected names of dtypes, such as 'float32'")
    return OneOf(tuple(dtypes))


def _list(where: str, came: Any) -> list[Any]:
    if not isinstance(came, list) or not came:
        raise TunedError(f"{where}: got {came!r}, expected a list")
    return came


def _among(where: str, came: Any, known: Collection[str]) -> None:
    if came not in known:
        raise TunedError(f"{where}: got {came!r}, expected one of: {', '.join(known)}")
