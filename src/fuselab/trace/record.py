"""The trace of one call: what was observed, and beside each operator what the tables say of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fuselab.trace import places
from fuselab.trace.call import Call
from fuselab.trace.events import Event, Function, Kind, observe
from fuselab.trace.places import Entry
from fuselab.trace.walk import Step, Turn, hides_another, keys_of, overload, unavailable, walk


@dataclass(frozen=True)
class Row:
    """An observed event with what is computed of it.

    op       its full name with the overload, "" if the event is no registered operator
    walk     keys it passes; () below the kernel that called it, where the way is not known
    entries  in ATen's yaml files
    makes    how it is made: structured, composite, a kernel a backend
    maker    index of the forward's row whose backward this node is, or None
    """

    event: Event
    op: str = ""
    walk: tuple[Step, ...] = ()
    entries: tuple[Entry, ...] = ()
    makes: str = ""
    maker: int | None = None


@dataclass(frozen=True)
class Trace:
    """One call: rows of the forward and of the backward, each in the order they began.

    unavailable  private names of torch that are gone, for which there is no walk
    """

    call: Call
    forward: tuple[Row, ...]
    backward: tuple[Row, ...]
    unavailable: tuple[str, ...]


def trace(call: Call) -> Trace:
    """Run a call and its backward, and return what was seen; raises what `call.run` raises."""
    gone = unavailable()
    forward, backward = observe(call, computed=not gone)
    with call.contexts():
        ahead = tuple(_rows(forward, None if gone else keys_of(call.tensors)))
    back = tuple(_rows(backward, None if gone else keys_of(call.tensors), _makers(ahead)))
    return Trace(call, ahead, back, tuple(gone))


def _makers(rows: tuple[Row, ...]) -> dict[int, int]:
    """Return sequence number -> index of the innermost row that has it: what autograd noted."""
    by_depth = sorted(range(len(rows)), key=lambda i: rows[i].event.depth)
    return {rows[i].event.sequence: i for i in by_depth if rows[i].event.sequence >= 0}


def _rows(
    events: list[Event],
    keys: torch._C.DispatchKeySet | None,
    makers: dict[int, int] | None = None,
) -> Iterator[Row]:
    above: list[Row] = []
    for event in events:
        del above[event.depth :]
        row = _row(event, _keys(event.function, keys) if _called_from_above(above) else None)
        if makers is not None and event.kind is Kind.AUTOGRAD:
            row = Row(event, maker=makers.get(event.sequence))
        above.append(row)
        yield row


def _keys(
    function: Function | None, keys: torch._C.DispatchKeySet | None
) -> torch._C.DispatchKeySet | None:
    return function.keys if function else keys


def _called_from_above(above: list[Row]) -> bool:
    """Return whether an event within these has all keys: no operator between ran its own kernel."""
    return all(not row.op or _hands_on(row) for row in above)


def _hands_on(row: Row) -> bool:
    if not row.walk or row.walk[-1].turn is not Turn.DECOMPOSES:
        return False
    return not hides_another(row.op, row.walk[-1].key)


def _row(event: Event, keys: torch._C.DispatchKeySet | None) -> Row:
    if event.kind is not Kind.OPERATOR or "::" not in event.name or unavailable():
        return Row(event)
    op = overload(event.name, event.kinds)
    if not op:
        return Row(event)
    steps = tuple(walk(op, keys)) if keys is not None else ()
    return Row(event, op, steps, tuple(places.entries(op)), places.makes(op))
