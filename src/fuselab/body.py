"""A measurement as a store keeps it, and back; what comes back is checked, for anybody may write.

Reading raises ValueError or TypeError for what no measurement has: another type, a number that is
not finite, negative or absurd, a text that is no Unicode.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fuselab.model import Accuracy, Cell, Count, Measurement, Status

LARGEST = 1e30
DEEPEST = 20
_APART = ("cell", "status", "samples_us", "environment")
_TEXTS = ("reason", "timer", "code", "precision")
_WHOLE = ("peak_bytes", "buffer_bytes", "ideal_bytes", "flops")
# What of the proof others reckon with.
_PROVEN_TEXTS = ("role", "mix", "version", "chosen", "method")
_PROVEN_NUMBERS = ("launches", "copies", "graphs", "breaks", "recompiles")
_PROVEN_COUNTS = ("kernels", "operators", "served")


def to_json(measurement: Measurement) -> str:
    """Return all of a measurement that has no column of its own."""
    fields = dataclasses.asdict(measurement)
    return json.dumps({name: value for name, value in fields.items() if name not in _APART})


def samples_to_bytes(measurement: Measurement) -> bytes:
    """Return the samples as little-endian float64."""
    return struct.pack(f"<{len(measurement.samples_us)}d", *measurement.samples_us)


def read(
    names: Sequence[Any], status: str, environment: str | None, text: str, samples: bytes
) -> Measurement:
    """Return the measurement of a row."""
    fields = from_json(text)
    for name in _TEXTS:
        _text(name, fields.get(name, ""))
    for name in _WHOLE:
        _number(name, fields.get(name), whole=True)
    _number("host_us", fields.get("host_us"))
    if fields["accuracy"] is not None:
        fields["accuracy"] = _accuracy(fields["accuracy"])
    _check_proof(fields["proof"])
    fields["counts"] = {
        name: _count(name, found) for name, found in _mapping("counts", fields.get("counts", {}))
    }
    fields["hot_us"] = times("hot_us", fields.get("hot_us", ()))
    return Measurement(
        cell=Cell(*(_text("cell", name) for name in names)),
        status=Status(status),
        samples_us=times("samples_us", struct.unpack(f"<{len(samples) // 8}d", samples)),
        environment=_text("environment", environment or ""),
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
    numbers = tuple(map(float, values))
    for value in numbers:
        _number(name, value)
    return numbers


def _number(name: str, value: Any, *, whole: bool = False) -> None:
    if value is None:
        return
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError(f"{name}: got {_short(value)}, expected a {'whole ' * whole}number")
    if not 0 <= value <= LARGEST:
        raise ValueError(f"{name}: got {_short(value)}, expected 0 to {LARGEST:g}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: got {_short(value)}, expected text")
    return value


def _short(value: Any) -> str:
    return repr(value)[:60]


def _mapping(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: got {_short(value)}, expected an object")
    return value.items()


def _accuracy(fields: Any) -> Accuracy:
    known = dict(_mapping("accuracy", fields))
    for name, value in known.items():
        # An error may be infinite, or none at all.
        if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
            raise TypeError(f"accuracy.{name}: got {_short(value)}, expected a number")
    required = [known[name] for name in ("max_abs", "rms", "max_ulp")]
    if None in required:
        raise TypeError(f"accuracy: got {_short(known)}, expected max_abs, rms and max_ulp")
    return Accuracy(**known)


def _count(name: str, fields: Any) -> Count:
    known = dict(_mapping(f"counts.{name}", fields))
    _number(f"counts.{name}", known["value"])
    for field in ("unit", "source", "unavailable"):
        _text(f"counts.{name}.{field}", known.get(field, ""))
    for part, value in _mapping(f"counts.{name}.parts", known.get("parts", {})):
        _number(f"counts.{name}.{part}", value)
    return Count(**known)


def _check_proof(proof: Any) -> None:
    known = dict(_mapping("proof", proof))
    for name in _PROVEN_TEXTS:
        _text(f"proof.{name}", known.get(name) or "")
    for name in _PROVEN_NUMBERS:
        _number(f"proof.{name}", known.get(name))
    for name in _PROVEN_COUNTS:
        for kernel, count in _mapping(f"proof.{name}", known.get(name) or {}):
            _number(f"proof.{name}.{kernel}", count)
    for mhz in known.get("sm_mhz") or ():
        if mhz is None or not math.isfinite(mhz):
            raise ValueError(f"proof.sm_mhz: got {_short(mhz)}, expected a number")


def _check_depth(value: Any, left: int) -> None:
    if left == 0:
        raise ValueError(f"nested deeper than {DEEPEST}")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        _check_depth(one, left - 1)
