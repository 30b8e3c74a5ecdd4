"""A measurement as a store keeps it, and back; what comes back is checked, for anybody may write.

Reading raises ValueError or TypeError for what no measurement has: another type, a number that is
not finite, negative or absurd, a text that is no Unicode.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fuselab.model import Accuracy, Cell, Count, Measurement, Proof, Status

LARGEST = 1e30
DEEPEST = 20
_APART = ("cell", "status", "samples_us", "environment")
_RECORDS: Mapping[str, Any] = {"Accuracy": Accuracy, "Count": Count, "Proof": Proof}
# What JSON holds of each type that fields of records have, and what errors call it.
_KINDS: Mapping[str, tuple[Any, str]] = {
    "str": (str, "text"),
    "bool": (bool, "true or false"),
    "int": (int, "a whole number"),
    **dict.fromkeys(("float", "Error"), ((int, float), "a number")),
    "tuple": (list, "a list"),
    **dict.fromkeys(("Mapping", *_RECORDS), (dict, "an object")),
    "Any": (object, ""),
}


def to_json(measurement: Measurement) -> str:
    """Return all of a measurement that has no column of its own."""
    fields = {**dataclasses.asdict(measurement), "proof": measurement.proof.known()}
    return json.dumps({name: value for name, value in fields.items() if name not in _APART})


def samples_to_bytes(measurement: Measurement) -> bytes:
    """Return the samples as little-endian float64."""
    return struct.pack(f"<{len(measurement.samples_us)}d", *measurement.samples_us)


def read(
    names: Sequence[Any], status: str, environment: str | None, text: str, samples: bytes
) -> Measurement:
    """Return the measurement of a row."""
    fields = _fields(Measurement, "", _current(from_json(text)))
    return Measurement(
        cell=Cell(*(_value("str", "cell", name) for name in names)),
        status=Status(status),
        samples_us=times("samples_us", struct.unpack(f"<{len(samples) // 8}d", samples)),
        environment=_value("str", "environment", environment or ""),
        **fields,
    )


def from_json(text: str) -> dict[str, Any]:
    """Return the object that a text holds."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"got {type(found).__name__}, expected an object")
    _check_depth(found, DEEPEST)
    if "\\ud" in text.lower():  # a half of a surrogate pair can be read, and not be written
        json.dumps(found, ensure_ascii=False).encode()
    return found


def times(name: str, values: Iterable[Any]) -> tuple[float, ...]:
    """Return times in us as numbers."""
    return tuple(_value("float", name, float(value)) for value in values)


def _current(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a body as it is written now: older versions had `operators`, and nulls, in proofs."""
    proof = _value("Mapping[str, Any]", "proof", fields["proof"])
    if ran := _value("Mapping[str, int]", "proof.operators", proof.get("operators") or {}):
        proof = {"kernels": ran, "launches": sum(ran.values())} | proof
    return {**fields, "proof": {name: one for name, one in proof.items() if one is not None}}


def _fields(kind: type[Any], name: str, value: Any) -> dict[str, Any]:
    """Return the fields of a record, each read as its type; what is no field is left out."""
    types = {name: str(declared) for name, declared in kind.__annotations__.items()}
    found = _value("Mapping[str, Any]", name, value).items()
    at = f"{name}." if name else ""
    return {key: _value(types[key], at + key, one) for key, one in found if key in types}


def _value(kind: str, name: str, value: Any) -> Any:
    """Return what a field of that type holds."""
    if kind.endswith(" | None"):
        return None if value is None else _value(kind.removesuffix(" | None"), name, value)
    base, _, inner = kind.partition("[")
    expected, called = _KINDS[base]
    if not isinstance(value, expected) or (isinstance(value, bool) and base not in ("bool", "Any")):
        raise TypeError(f"{name}: got {repr(value)[:60]}, expected {called}")
    if base in ("int", "float") and not 0 <= value <= LARGEST:
        raise ValueError(f"{name}: got {repr(value)[:60]}, expected 0 to {LARGEST:g}")
    if base == "tuple":
        return tuple(_value(inner.removesuffix(", ...]"), name, one) for one in value)
    if base == "Mapping":
        each = inner.removeprefix("str, ").removesuffix("]")
        return {key: _value(each, f"{name}.{key}", one) for key, one in value.items()}
    return _RECORDS[base](**_fields(_RECORDS[base], name, value)) if base in _RECORDS else value


def _check_depth(value: Any, left: int) -> None:
    if left == 0:
        raise ValueError(f"nested deeper than {DEEPEST}")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        _check_depth(one, left - 1)
