"""Reads the text of a StableHLO and of an optimised HLO module; no jax."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_STABLE = re.compile(r"\bstablehlo\.(\w+)")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_CALLS = re.compile(r"calls=%?([\w.\-]+)")
_KIND = re.compile(r"kind=(\w+)")
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
# What moves no data of its own.
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")


@dataclass(frozen=True)
class Instruction:
    """A line of a computation: `name = shape opcode(rest`."""

    name: str
    shape: str
    opcode: str
    rest: str


@dataclass(frozen=True)
class Fusion:
    """Instructions that run as one loop or kernel; `members` are their opcodes in order."""

    name: str
    shape: str
    kind: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Module:
    """The optimised module.

    steps         opcodes of what runs one after the other, in order
    custom_calls  targets: libraries' functions, and ours
    """

    steps: tuple[str, ...]
    fusions: tuple[Fusion, ...]
    custom_calls: tuple[str, ...]


def stable_operations(text: str) -> dict[str, int]:
    """Return how often each StableHLO operation occurs, the most frequent first."""
    found = Counter(n for n in _STABLE.findall(text) if n not in ("constant", "return"))
    return dict(found.most_common())


def parse(text: str) -> Module:
    """Return what the optimised HLO's text says; ValueError if it has no entry."""
    entry, computations = _computations(text)
    run = [i for i in computations[entry] if i.opcode not in _FREE]
    return Module(
        tuple(i.opcode for i in run),
        tuple(_fusion(i, computations) for i in run if i.opcode == "fusion"),
        tuple(t for i in run if i.opcode == "custom-call" for t in _TARGET.findall(i.rest)),
    )


def _computations(text: str) -> tuple[str, dict[str, list[Instruction]]]:
    entry = ""
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = found[head[2]] = []
            entry = head[2] if head[1] else entry
        elif line_ := _INSTRUCTION.match(line):
            current.append(Instruction(*line_.groups()))
    if not entry:
        raise ValueError("no ENTRY computation in this HLO text")
    return entry, found


def _fusion(fusion: Instruction, computations: dict[str, list[Instruction]]) -> Fusion:
    (called,) = _CALLS.findall(fusion.rest)
    kind = _KIND.findall(fusion.rest)
    members = (i.opcode for i in computations[called] if i.opcode not in ("parameter", "constant"))
    return Fusion(fusion.name, fusion.shape, kind[0] if kind else "", tuple(members))
