"""The keys that a call of an operator passes, computed from the dispatcher's tables.

A release build of torch does not tell which kernels a call ran through. Its tables tell which it
would: the highest key of the call has its turn, and what is registered there ends the walk, leaves
it to the next key, or calls the operator again below its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import torch
from torch._C import DispatchKeySet

_ENTRY = re.compile(r"(\w+): (fallthrough )?(?:registered at )?(.*) \[([\w ]+)\]")
_COMPOSITE = "math kernel"
_PASSED_ON = ("Autograd", "Autocast", "ADInplaceOrView", "BackendSelect", "Functionalize", "Python")
_INTERPRETED = ("FuncTorch", "PreDispatch")


class Turn(StrEnum):
    """What becomes of a call at one key."""

    PASSES = "falls through"
    CALLS_AGAIN = "calls again below"
    DECOMPOSES = "decomposes"
    REENTERS = "reenters"
    ENDS = "computes"
    MISSING = "has no kernel"


@dataclass(frozen=True)
class Entry:
    """What the table has at one key: its place (file:line) and how it came there."""

    place: str
    origin: str
    falls_through: bool


@dataclass(frozen=True)
class Step:
    """One key of the walk: what is registered there and what becomes of the call."""

    key: str
    turn: Turn
    place: str
    origin: str


def keys_of(tensors: Iterable[torch.Tensor]) -> DispatchKeySet:
    """Keys of a call with these tensors as this thread is set: modes add some, others are off."""
    keys = torch._C._dispatch_tls_local_include_set()
    for tensor in tensors:
        keys = keys | torch._C._dispatch_keys(tensor)
    return keys - torch._C._dispatch_tls_local_exclude_set()


def walk(op: str, keys: DispatchKeySet) -> Iterator[Step]:
    """The steps of a call of `op` ("aten::mm", with ".overload" if it has one) with these keys."""
    entries = table(op)
    for key in descending(keys):
        entry = entries.get(key)
        step = Step(
            key, turn(key, entry), entry.place if entry else "", entry.origin if entry else ""
        )
        yield step
        if step.turn not in (Turn.PASSES, Turn.CALLS_AGAIN):
            return


def descending(keys: DispatchKeySet) -> Iterator[str]:
    """Names of the keys, the one whose turn is first first."""
    while (highest := keys.highestPriorityTypeId()) != torch._C.DispatchKey.Undefined:
        yield str(highest).removeprefix("DispatchKey.")
        keys = keys.remove(highest)


def turn(key: str, entry: Entry | None) -> Turn:
    if entry is None:
        return Turn.MISSING
    if entry.falls_through:
        return Turn.PASSES
    if key.startswith(_INTERPRETED) and entry.origin == "backend fallback":
        return Turn.REENTERS
    if entry.origin == _COMPOSITE:
        return Turn.DECOMPOSES
    return Turn.CALLS_AGAIN if key.startswith(_PASSED_ON) else Turn.ENDS


@cache
def table(op: str) -> dict[str, Entry]:
    """Computed table of an operator: key -> what is registered for it."""
    found = (_ENTRY.fullmatch(line) for line in torch._C._dispatch_dump_table(op).splitlines())
    return {m[1]: Entry(place=m[3], origin=m[4], falls_through=bool(m[2])) for m in found if m}
