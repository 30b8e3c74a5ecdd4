"""A trace as text and as one flat record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fuselab.trace.events import Kind
from fuselab.trace.record import Row, Trace
from fuselab.trace.sentences import sentence

OBSERVED = "observed by a TorchFunctionMode and torch.profiler"
COMPUTED = "computed from the dispatcher's tables: what they say of a call with these keys"


def to_text(trace: Trace, depth: int) -> str:
    """Return the trace as indented lines; events deeper than `depth` are counted, not shown."""
    lines = [f"{trace.call.expression}"]
    lines += [f"  {name}: {value}" for name, value in facts(trace)]
    for title, rows in (("forward", trace.forward), ("backward", trace.backward)):
        lines += ["", f"{title} ({OBSERVED})"]
        lines += _lines(trace, rows, depth) if rows else ["  nothing ran"]
    return "\n".join(lines) + "\n"


def facts(trace: Trace) -> Iterator[tuple[str, str]]:
    """Yield what holds for the whole call."""
    if trace.call.function:
        yield "function", f"{trace.call.function} {trace.call.place or '(not written in Python)'}"
    yield "torch", torch.__version__
    if trace.call.under:
        yield "under", ", ".join(trace.call.under)
    if trace.unavailable:
        yield "keys (->)", f"unavailable in this torch: {', '.join(trace.unavailable)}"
    else:
        yield "keys (->)", COMPUTED


def to_record(trace: Trace) -> dict[str, Any]:
    """Return the trace as values that JSON has."""
    return {
        "call": trace.call.expression,
        "function": {"name": trace.call.function, "place": trace.call.place},
        "torch": torch.__version__,
        "under": list(trace.call.under),
        "unavailable": list(trace.unavailable),
        "forward": [_record(row) for row in trace.forward],
        "backward": [_record(row) for row in trace.backward],
    }


def _record(row: Row) -> dict[str, Any]:
    event, function = row.event, row.event.function
    return {
        "observed": {
            "kind": event.kind,
            "name": event.name,
            "depth": event.depth,
            "shapes": event.shapes,
            "sequence": event.sequence,
            "kernels": event.kernels,
            "place": function.place if function and event.kind is Kind.FUNCTION else "",
            "line": function.line if function and event.kind is Kind.FUNCTION else "",
            "forward": row.maker,
        },
        "computed": {
            "op": row.op,
            "makes": row.makes,
            "walk": [
                {
                    "key": step.key,
                    "turn": step.turn,
                    "registered": step.place,
                    "origin": step.origin,
                    "sentence": sentence(step),
                }
                for step in row.walk
            ],
            "entries": [
                {"file": entry.file, "line": entry.line, "text": entry.text}
                for entry in row.entries
            ],
        },
    }


def head(row: Row, trace: Trace) -> str:
    """Return the line of an event: what it is, and where that is written."""
    event = row.event
    name = row.op or event.name
    shapes = ", ".join("x".join(map(str, shape)) for shape in event.shapes if shape)
    if event.kind is Kind.FUNCTION and event.function:
        of = f" of {event.function.line}" if event.function.line else ""
        return f"{name}{of}  {event.function.place}".rstrip()
    if row.maker is not None:
        maker = trace.forward[row.maker]
        return f"{name}  of the forward's {maker.op or maker.event.name}"
    return f"{name}  ({shapes})" if shapes else name


def _lines(trace: Trace, rows: tuple[Row, ...], depth: int) -> Iterator[str]:
    hidden = 0
    walked: set[tuple[Any, ...]] = set()
    told: set[tuple[Any, ...]] = set()
    for row in rows:
        if row.event.depth >= depth:
            hidden += 1
            continue
        indent = "  " * (row.event.depth + 1)
        yield f"{indent}{head(row, trace)}"
        for kernel in row.event.kernels:
            yield f"{indent}    launches {kernel}"
        if row.walk and (row.op, row.walk) in walked:
            yield f"{indent}    -> the same keys as above"
        elif row.walk:
            walked.add((row.op, row.walk))
            yield from _walk(row, f"{indent}    ", told)
    if hidden:
        yield f"  ({hidden} deeper events not shown: --depth)"


def _walk(row: Row, indent: str, told: set[tuple[Any, ...]]) -> Iterator[str]:
    """Yield the keys; what happens at one is said the first time only."""
    for step in row.walk:
        said = "" if (step.key, step.turn) in told else f". {sentence(step)}"
        told.add((step.key, step.turn))
        yield f"{indent}-> {step.key}: {step.turn.value}{said}"
        yield f"{indent}   {step.place or 'nothing is registered'}"
    if row.makes:
        yield f"{indent}{row.makes}"
    for entry in row.entries:
        yield f"{indent}torchgen/packaged/{entry.file}:{entry.line}"
