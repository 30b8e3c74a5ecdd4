"""From measurements to flat records with stable column names, and their export."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from fuselab.metric import Item
from fuselab.model import Cell, Measurement, Proof, Status
from fuselab.planning.plan import CEILING
from fuselab.records import columns
from fuselab.records.columns import NAMED
from fuselab.statistics import stats
from fuselab.storage import body

Record = dict[str, Any]

COLUMNS = tuple(NAMED)

_ROLES = {
    "eager": "eager",
    "torchscript": "baseline",
    "compile": "baseline",
    "enabled": "baseline",
    "native": "native",
    CEILING: CEILING,
}
# The streams of a ceiling name the implementation of the 4 GiB recipe that has the same.
_PEAK_OF_MIX = {"1R1W": "copy", "2R1W": "add"}
_CELL = ("op", "impl", "direction", "case", "dtype", "layout", "device")
_WANTED = "expected what `fuselab export --format jsonl --samples` prints"

BASELINE_SAMPLES = 100

# A cell that begins so is run by spreadsheets, also in the wide forms of East Asian text.
_FORMULA = ("=", "+", "-", "@", "\t", "\n", "＝", "＋", "－", "＠")


def records(measurements: Iterable[Measurement]) -> list[Record]:
    """Return one flat record a cell with the keys of `COLUMNS`, and of what else was counted.

    None stands for unknown.

    Ratios compare cells of one group measured in one environment, and only those that are ok: a
    noisy one has none, and is nobody's yardstick. A cell whose status has no number has None in
    every column that a time goes into.
    """
    measurements = list(measurements)
    declared, roles = columns.of(measurements), _roles(measurements)
    items = [Item(m, roles[m.cell.op, m.cell.impl]) for m in measurements]
    yardsticks: dict[tuple[str, ...], Item] = {}
    for item in items:
        cell = item.measurement.cell
        if cell.op == CEILING:
            yardsticks[_peak_key(item.measurement, cell.impl)] = item
        elif item.role in ("eager", CEILING):
            yardsticks[_place(item.measurement, item.role)] = item
    for item in items:
        measurement = item.measurement
        item.eager = yardsticks.get(_place(measurement, "eager")) if item.role != CEILING else None
        item.ceiling = yardsticks.get(_place(measurement, CEILING))
        mix = item.ceiling.measurement.proof.mix if item.ceiling else None
        item.peak = yardsticks.get(_peak_key(measurement, _PEAK_OF_MIX.get(str(mix), "")))
    return [{metric.name: metric.value(item) for metric in declared} for item in items]


def key(row: Record) -> str:
    """Return the key of a record's cell."""
    return Cell(*(row[name] for name in _CELL)).key


def to_jsonl(rows: Sequence[Record]) -> str:
    """Return one JSON object a line; a number that is not finite becomes its name as text."""
    return "".join(
        json.dumps({name: finite(value) for name, value in row.items()}, ensure_ascii=False) + "\n"
        for row in rows
    )


def raw(measurement: Measurement) -> Record:
    """Return what a comparison needs beside the flat record: the samples and how they came about.

    `from_jsonl` reads it back.
    """
    proof = measurement.proof
    clocks = list(proof.sm_mhz) or None
    return {"samples_us": list(measurement.samples_us), "sm_mhz": clocks, "method": proof.method}


def to_baseline(measurements: Iterable[Measurement]) -> str:
    """Return JSON Lines that `from_jsonl` reads and a person reviews in a diff.

    A short line a cell in the order of their keys, the median first; of the samples at most
    BASELINE_SAMPLES, evenly taken, to four digits.
    """
    lines = []
    for m in sorted(measurements, key=lambda m: m.cell.key):
        step = max(1, math.ceil(len(m.samples_us) / BASELINE_SAMPLES))
        clocks = m.proof.sm_mhz
        line = {
            "median_us": _short(stats.median(m.samples_us)) if m.samples_us else None,
            **{name: getattr(m.cell, name) for name in _CELL},
            "status": str(m.status),
            "reason": m.reason,
            "timer": m.timer,
            "method": m.proof.method,
            "sm_mhz": [_short(stats.median(clocks))] if clocks else None,
            "environment": m.environment,
            "samples_us": [_short(us) for us in m.samples_us[::step]],
        }
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return "".join(lines)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def from_jsonl(text: str) -> list[Measurement]:
    """Return the measurements of records with samples; ValueError names the line that has none."""
    found = []
    # Not splitlines: that ends a line at characters that JSON leaves inside a text.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(_from_record(json.loads(line)))
        except KeyError as error:
            raise ValueError(f"line {number}: got no {error}, {_WANTED}") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number}: not JSON ({error.msg}), {_WANTED}") from error
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from error
    return found


def to_csv(rows: Sequence[Record]) -> str:
    """Return a CSV table with a header line; text that a spreadsheet would run is quoted by '."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_inert, rows[0] if rows else COLUMNS))
    writer.writerows(map(_inert, row.values()) for row in rows)
    return out.getvalue()


def _from_record(record: Record) -> Measurement:
    samples, clocks = (body.times(name, record[name] or ()) for name in ("samples_us", "sm_mhz"))
    return Measurement(
        Cell(*(str(record[name]) for name in _CELL)),
        Status(record["status"]),
        reason=str(record["reason"]),
        timer=str(record["timer"]),
        samples_us=samples,
        proof=Proof(sm_mhz=clocks, method=record["method"]),
        environment=str(record["environment"]),
    )


def _roles(measurements: Sequence[Measurement]) -> dict[tuple[str, str], str]:
    """Return the role of each (op, impl): what a proof says, else what the name is known for."""
    roles: dict[tuple[str, str], str] = {}
    for measurement in measurements:
        cell, proof = measurement.cell, measurement.proof
        known = CEILING if cell.op == CEILING else _ROLES.get(cell.impl, "ours")
        roles[cell.op, cell.impl] = str(proof.role or roles.get((cell.op, cell.impl)) or known)
    return roles


def _place(measurement: Measurement, role: str) -> tuple[str, ...]:
    cell = measurement.cell
    return (
        *(role, measurement.environment, cell.device, cell.op),
        *(cell.direction, cell.case, cell.dtype, cell.layout),
    )


def _peak_key(measurement: Measurement, impl: str) -> tuple[str, ...]:
    return (measurement.environment, measurement.cell.device, impl)


def finite(value: Any) -> Any:
    """Return the value as JSON can hold it: Inf and NaN as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _inert(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # The csv module leaves a lone carriage return unquoted, and then cannot read it back.
    text = "\n".join(value.splitlines()) if "\r" in value else value
    return f"'{text}" if text.startswith(_FORMULA) else text
