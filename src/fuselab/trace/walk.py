"""The keys that a call of an operator passes, computed from the dispatcher's tables.

A release build of torch does not tell which kernels a call ran through. Its tables tell which it
would: the highest key of the call has its turn, and what is registered there ends the walk, leaves
it to the next key, or calls the operator again below its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

import torch

NEEDED = (
    "DispatchKeySet",
    "_dispatch_dump_table",
    "_dispatch_keys",
    "_dispatch_tls_local_exclude_set",
    "_dispatch_tls_local_include_set",
    "_jit_get_schemas_for_operator",
)
_ENTRY = re.compile(r"(\w+): (fallthrough )?(?:registered at )?(.*) \[([\w ]+)\]")
_COMPOSITE = "math kernel"
_PASSED_ON = ("Autograd", "Autocast", "ADInplaceOrView", "BackendSelect", "Functionalize", "Python")
_INTERPRETED = ("FuncTorch", "PreDispatch")


class Turn(str, Enum):
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


def unavailable() -> list[str]:
    """Return the private names that the walk needs and this torch has not."""
    return [f"torch._C.{name}" for name in NEEDED if not hasattr(torch._C, name)]


def keys_of(tensors: Iterable[torch.Tensor]) -> torch._C.DispatchKeySet:
    """Return the keys of a call with these tensors, as this
    thread is set: modes add and hide some.
    """
    keys = torch._C._dispatch_tls_local_include_set()
    for tensor in tensors:
        keys = keys | torch._C._dispatch_keys(tensor)
    return keys - torch._C._dispatch_tls_local_exclude_set()


def walk(op: str, keys: torch._C.DispatchKeySet) -> Iterator[Step]:
    """Return the steps of a call of `op` ("aten::mm", with ".overload" if any) with these keys."""
    entries = table(op)
    for key in descending(keys):
        entry = entries.get(key)
        step = Step(
            key, turn(key, entry), entry.place if entry else "", entry.origin if entry else ""
        )
        yield step
        if step.turn not in (Turn.PASSES, Turn.CALLS_AGAIN):
            return


def hides_another(op: str, key: str) -> bool:
    """Return whether another overload of this name has a kernel of its own at the key.

    A profiler shows no call of an operator within one of its own name: std.dim calls
    std.correction, and what is seen within is that one's.
    """
    name, _, own = op.partition(".")
    overloads = (s.overload_name for s in torch._C._jit_get_schemas_for_operator(name))
    others = (o for o in overloads if o != own and not o.endswith("out"))
    entries = (table(f"{name}.{other}".removesuffix(".")).get(key) for other in others)
    return any(entry is not None and entry.origin != _COMPOSITE for entry in entries)


def descending(keys: torch._C.DispatchKeySet) -> Iterator[str]:
    """Return the names of the keys, the one whose turn is first first."""
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
    """Return the computed table of an operator: key -> what is registered for it."""
    found = (_ENTRY.fullmatch(line) for line in torch._C._dispatch_dump_table(op).splitlines())
    return {m[1]: Entry(place=m[3], origin=m[4], falls_through=bool(m[2])) for m in found if m}


def overload(op: str, kinds: Sequence[str]) -> str:
    """Return the first overload that takes arguments of these kinds ("aten::mul.Tensor").

    The first of all if none does, "" if there is no such operator.
    A profiler names operators without overload; its kinds are a dtype for a tensor, "Scalar",
    "ScalarList", "TensorList", "" for None.
    """
    schemas = torch._C._jit_get_schemas_for_operator(op)
    for schema in schemas:
        types = [str(argument.type) for argument in schema.arguments]
        if len(types) == len(kinds) and all(map(_takes, types, kinds)):
            return f"{op}.{schema.overload_name}".removesuffix(".")
    return f"{op}.{schemas[0].overload_name}".removesuffix(".") if schemas else ""


def _takes(type_: str, kind: str) -> bool:
    listed = "List" in type_
    if kind == "":
        return "Optional" in type_ or listed
    if kind in ("TensorList", "ScalarList"):
        return listed and ("Tensor" in type_) == (kind == "TensorList")
    return not listed and ("Tensor" in type_) == (kind != "Scalar")
