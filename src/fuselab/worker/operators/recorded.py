"""A suite of recorded calls: a file of operators' inputs, and the operators with these as cases.

The file is JSON: {"suite": 1, "cases": [{"op", "name", "dtype", "directions", "count", "inputs"}]}.
An input is a number, a text, null, or a tensor: {"shape", "strides", "dtype"}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuselab.errors import LabError
from fuseline.core.specs.spec import Case, Inputs, OpSpec

# Before the path of a file, as a source of `specs.load`.
SOURCE = "suite "
SUITE, SUFFIX = "recorded", ".json"
VERSION = 1
DIRECTIONS = ("fwd", "bwd")
_CALL = "recorded call"


class SuiteError(LabError, ValueError):
    """A file that is no suite of recorded calls; the text says what is wrong with it."""

    code = 2


@dataclass(frozen=True)
class Recorded:
    """A call of an operator.

    inputs      by the operator's names; a tensor is a dict of shape, strides and dtype
    count       how often a step makes it
    directions  "fwd", "bwd", or both
    """

    op: str
    name: str
    dtype: str
    inputs: Mapping[str, Any]
    count: float = 1.0
    directions: tuple[str, ...] = DIRECTIONS[:1]

    def __post_init__(self) -> None:
        object.__setattr__(self, "directions", tuple(self.directions))
        for name, value in self.inputs.items():
            if is_tensor(value):
                missing = {"shape", "strides", "dtype"} - value.keys()
                if missing or not isinstance(getattr(torch, value["dtype"], None), torch.dtype):
                    raise SuiteError(
                        f"case {self.name!r}: {name}: got {value}, expected shape, strides, dtype"
                    )


@dataclass(frozen=True)
class Suite:
    """Recorded calls, and what recorded them."""

    cases: tuple[Recorded, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return the file's text."""
        cases = [vars(case) for case in self.cases]
        return json.dumps({"suite": VERSION, "about": dict(self.about), "cases": cases}, indent=1)


def is_tensor(value: Any) -> bool:
    """Return whether a recorded input stands for a tensor."""
    return isinstance(value, Mapping)


def read(path: str | Path) -> Suite:
    """Return the suite of a file; SuiteError where it is none."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        if found.get("suite") != VERSION:
            raise SuiteError(f"{path}: suite: got {found.get('suite')!r}, expected {VERSION}")
        cases = tuple(Recorded(**case) for case in found["cases"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, SuiteError):
            raise
        raise SuiteError(f"{path}: expected a suite of recorded calls, {error}") from error
    if not cases:
        raise SuiteError(f"{path}: cases: got none")
    return Suite(cases, found.get("about", {}))


def load(source: str, table: Mapping[str, OpSpec]) -> dict[str, OpSpec]:
    """Return the operators of a suite with its calls as their cases."""
    path = source.removeprefix(SOURCE)
    by_op: dict[str, list[Recorded]] = {}
    for case in read(path).cases:
        if case.op not in table:
            raise SuiteError(f"{path}: op: got {case.op!r}, expected an operator of the table")
        by_op.setdefault(case.op, []).append(case)
    return {op: of_calls(table[op], calls) for op, calls in by_op.items()}


def source_text(source: str) -> tuple[str, ...]:
    """Return the text of a source that is a suite of recorded calls, else nothing."""
    if not source.startswith(SOURCE):
        return ()
    return (Path(source.removeprefix(SOURCE)).read_text(encoding="utf-8"),)


def call_of(case: Case) -> Recorded | None:
    """Return the call that a case was recorded from."""
    found = case.args.get(_CALL)
    return found if isinstance(found, Recorded) else None


def of_calls(spec: OpSpec, calls: Sequence[Recorded]) -> OpSpec:
    """Return the operator with recorded calls as its cases."""
    dtypes = dict.fromkeys(getattr(torch, call.dtype) for call in calls)
    return replace(
        spec,
        cases=tuple(Case(call.name, {_CALL: call}, (SUITE,)) for call in calls),
        make_inputs=_draw,
        dtypes=tuple(dtypes),
        suite_dtypes={},
    )


def _draw(
    case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    call: Recorded = case.args[_CALL]
    return {
        name: _tensor(name, value, call, device, generator) if is_tensor(value) else value
        for name, value in call.inputs.items()
    }


def _tensor(
    name: str,
    value: Mapping[str, Any],
    call: Recorded,
    device: torch.device,
    generator: torch.Generator,
) -> Tensor:
    """Return a tensor of the recorded kind with random contents that suit its name."""
    shape, strides = tuple(value["shape"]), tuple(value["strides"])
    dtype: torch.dtype = getattr(torch, value["dtype"])
    # What is expanded stands in memory once.
    held = tuple(n if stride else 1 for n, stride in zip(shape, strides, strict=True))
    if dtype == torch.bool:
        drawn = torch.rand(held, device=device, generator=generator) < 0.5
    elif not dtype.is_floating_point:
        drawn = torch.randint(_below(call), held, device=device, generator=generator).to(dtype)
    else:
        drawn = torch.randn(held, device=device, generator=generator)
        drawn = drawn.abs() + 0.5 if "var" in name else drawn * _scale(name, shape)
        drawn = drawn.to(dtype)
    if not dtype.is_floating_point:
        # Dense: a copy, which other strides need, is filled with NaN where the lab checks.
        return drawn.expand(shape)
    span = 1 + sum((n - 1) * s for n, s in zip(held, strides, strict=True)) if drawn.numel() else 0
    memory = drawn.new_zeros(span)
    laid = memory.as_strided(held, strides) if span else drawn
    return laid.copy_(drawn).expand(shape)


def _scale(name: str, shape: Sequence[int]) -> float:
    """Return what gives products with a tensor a variance near 1."""
    if len(shape) < 2:
        return 1.0
    terms = {"weight": shape[1:], "b": shape[-2:-1], "w1": shape[-2:-1], "w2": shape[-2:-1]}
    return float(math.prod(terms.get(name, ())) ** -0.5)


def _below(call: Recorded) -> int:
    """Return the number of classes that integers of a call choose among."""
    logits: Any = call.inputs.get("logits")
    return int(logits["shape"][-1]) if is_tensor(logits) else 2
