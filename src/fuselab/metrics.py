"""From measurements to flat records with stable column names, and their export."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fuselab import body, stats
from fuselab.counters import UNITS
from fuselab.model import Cell, Count, Measurement, Status
from fuselab.plan import CEILING, HOST

Record = dict[str, Any]

COLUMNS = (
    *("op", "impl", "role", "direction", "case", "dtype", "layout", "device"),
    *("status", "reason", "median_us", "ci_low_us", "ci_high_us", "samples", "precision", "timer"),
    *("hot_us", "host_us", "sm_mhz"),
    *("max_abs_error", "rms_error", "max_ulp", "eager_ratio", "max_eps"),
    *("peak_bytes", "buffer_bytes", "ideal_bytes", "flops"),
    *("gbps", "ceiling_mix", "ceiling_gbps", "ceiling_share", "peak_share", "speedup_vs_eager"),
    *("kernels", "launches", "copies", "graphs", "breaks", "recompiles", "version"),
    *("chosen", "served", "environment"),
    *(*UNITS, "not_counted"),
)

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
_PROOF = ("copies", "graphs", "breaks", "recompiles", "version", "chosen")
_CELL = ("op", "impl", "direction", "case", "dtype", "layout", "device")
# What of the proof a comparison looks at.
_COMPARED = ("sm_mhz", "method")
_WANTED = "expected what `fuselab export --format jsonl --samples` prints"

BASELINE_SAMPLES = 100

# A cell that begins so is run by spreadsheets, also in the wide forms of East Asian text.
_FORMULA = ("=", "+", "-", "@", "\t", "\n", "＝", "＋", "－", "＠")

_Times = Mapping[tuple[str, ...], "_Timed"]


class _Timed:
    """A measurement with the summary of its samples."""

    def __init__(self, measurement: Measurement) -> None:
        self.measurement = measurement
        self.summary = (
            stats.summary(measurement.samples_us) if measurement.status.has_number else None
        )

    @property
    def good(self) -> bool:
        """Whether the number may be compared with others."""
        return self.measurement.status is Status.OK

    @property
    def median_us(self) -> float | None:
        return self.summary.median if self.summary else None

    @property
    def gbps(self) -> float | None:
        nbytes, median = self.measurement.ideal_bytes, self.median_us
        if not nbytes or not median or self.measurement.timer == HOST:
            return None
        return nbytes / median / 1e3


def records(measurements: Iterable[Measurement]) -> list[Record]:
    """Return one flat record a cell with the keys of `COLUMNS`; None stands for unknown.

    Ratios compare cells of one group measured in one environment, and only those that are ok: a
    noisy one has none, and is nobody's yardstick. A cell whose status has no number has None in
    every column that a time goes into.
    """
    timed = [_Timed(measurement) for measurement in measurements]
    roles = _roles(timed)
    yardsticks: dict[tuple[str, ...], _Timed] = {}
    for item in timed:
        cell = item.measurement.cell
        role = roles[cell.op, cell.impl]
        if cell.op == CEILING:
            yardsticks[_peak_key(item.measurement, cell.impl)] = item
        elif role in ("eager", CEILING):
            yardsticks[_place(item.measurement, role)] = item
    return [_record(item, roles, yardsticks) for item in timed]


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
    proof = {name: measurement.proof.get(name) for name in _COMPARED}
    return {"samples_us": list(measurement.samples_us), **proof}


def to_baseline(measurements: Iterable[Measurement]) -> str:
    """Return JSON Lines that `from_jsonl` reads and a person reviews in a diff.

    A short line a cell in the order of their keys, the median first; of the samples at most
    BASELINE_SAMPLES, evenly taken, to four digits.
    """
    lines = []
    for m in sorted(measurements, key=lambda m: m.cell.key):
        step = max(1, math.ceil(len(m.samples_us) / BASELINE_SAMPLES))
        clocks = m.proof.get("sm_mhz") or ()
        line = {
            "median_us": _short(stats.median(m.samples_us)) if m.samples_us else None,
            **{name: getattr(m.cell, name) for name in _CELL},
            "status": str(m.status),
            "reason": m.reason,
            "timer": m.timer,
            "method": m.proof.get("method"),
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
    writer.writerow(COLUMNS)
    writer.writerows([_inert(row[name]) for name in COLUMNS] for row in rows)
    return out.getvalue()


def _from_record(record: Record) -> Measurement:
    samples, clocks = (body.times(name, record[name] or ()) for name in ("samples_us", "sm_mhz"))
    return Measurement(
        Cell(*(str(record[name]) for name in _CELL)),
        Status(record["status"]),
        reason=str(record["reason"]),
        timer=str(record["timer"]),
        samples_us=samples,
        proof={"sm_mhz": clocks, "method": record["method"]},
        environment=str(record["environment"]),
    )


def _record(item: _Timed, roles: Mapping[tuple[str, str], str], yardsticks: _Times) -> Record:
    measurement, summary = item.measurement, item.summary
    cell, proof, accuracy = measurement.cell, measurement.proof, measurement.accuracy
    role = roles[cell.op, cell.impl]
    eager = yardsticks.get(_place(measurement, "eager")) if role != CEILING else None
    ceiling = yardsticks.get(_place(measurement, CEILING))
    mix = ceiling.measurement.proof.get("mix") if ceiling else None
    peak = yardsticks.get(_peak_key(measurement, _PEAK_OF_MIX.get(str(mix), "")))
    limit = ceiling.gbps if ceiling and ceiling.good else None
    # A timer that sees no kernels (a CPU's wall clock) leaves the operators that torch ran.
    ran: Mapping[str, int] = proof.get("kernels") or proof.get("operators") or {}
    row: Record = {
        "op": cell.op,
        "impl": cell.impl,
        "role": role,
        "direction": cell.direction,
        "case": cell.case,
        "dtype": cell.dtype,
        "layout": cell.layout,
        "device": cell.device,
        "status": str(measurement.status),
        "reason": measurement.reason,
        "median_us": item.median_us,
        "ci_low_us": summary.low if summary else None,
        "ci_high_us": summary.high if summary else None,
        "samples": summary.count if summary else None,
        "precision": measurement.precision,
        "timer": measurement.timer,
        "hot_us": stats.median(measurement.hot_us) if measurement.hot_us else None,
        "host_us": measurement.host_us,
        "sm_mhz": stats.median(proof["sm_mhz"]) if proof.get("sm_mhz") else None,
        "max_abs_error": accuracy.max_abs if accuracy else None,
        "rms_error": accuracy.rms if accuracy else None,
        "max_ulp": accuracy.max_ulp if accuracy else None,
        "eager_ratio": accuracy.eager_ratio if accuracy else None,
        "max_eps": accuracy.max_eps if accuracy else None,
        "peak_bytes": measurement.peak_bytes,
        "buffer_bytes": measurement.buffer_bytes,
        "ideal_bytes": measurement.ideal_bytes,
        "flops": measurement.flops,
        "gbps": item.gbps,
        "ceiling_mix": mix,
        "ceiling_gbps": limit,
        "ceiling_share": _ratio(item.gbps, limit) if item.good else None,
        "peak_share": _ratio(item.gbps, peak.gbps) if peak and peak.good and item.good else None,
        "speedup_vs_eager": _ratio(eager.median_us, item.median_us)
        if eager and eager.good and item.good
        else None,
        "kernels": "; ".join(ran),
        "launches": proof.get("launches", sum(ran.values()) if ran else None),
        **{name: proof.get(name) for name in _PROOF},
        "served": _served(proof),
        "environment": measurement.environment,
        **{name: _value(measurement.counts.get(name)) for name in UNITS},
        "not_counted": _not_counted(measurement.counts),
    }
    return {name: row[name] for name in COLUMNS}


def _served(proof: Mapping[str, Any]) -> str | None:
    """Return how many of the timed calls of ATen's operators were served; None: not asked."""
    if (served := proof.get("served")) is None:
        return None
    found = (f"{n} of {proof.get('timed_calls')} {name}" for name, n in served.items())
    return "; ".join(found) or "none"


def _value(count: Count | None) -> float | None:
    return count.value if count else None


def _not_counted(counts: Mapping[str, Count]) -> str:
    """Return a line for each reason: the counts that it keeps away, then the reason."""
    names: dict[str, list[str]] = {}
    for name, count in counts.items():
        if count.value is None:
            names.setdefault(count.unavailable, []).append(name)
    return "\n".join(f"{', '.join(known)}: {reason}" for reason, known in names.items())


def _roles(timed: Sequence[_Timed]) -> dict[tuple[str, str], str]:
    """Return the role of each (op, impl): what a proof says, else what the name is known for."""
    roles: dict[tuple[str, str], str] = {}
    for item in timed:
        cell, proof = item.measurement.cell, item.measurement.proof
        known = CEILING if cell.op == CEILING else _ROLES.get(cell.impl, "ours")
        roles[cell.op, cell.impl] = str(
            proof.get("role") or roles.get((cell.op, cell.impl)) or known
        )
    return roles


def _place(measurement: Measurement, role: str) -> tuple[str, ...]:
    cell = measurement.cell
    return (
        *(role, measurement.environment, cell.device, cell.op),
        *(cell.direction, cell.case, cell.dtype, cell.layout),
    )


def _peak_key(measurement: Measurement, impl: str) -> tuple[str, ...]:
    return (measurement.environment, measurement.cell.device, impl)


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator and denominator else None


def finite(value: Any) -> Any:
    """Return the value as JSON can hold it: Inf and NaN as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _inert(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # The csv module leaves a lone carriage return unquoted, and then cannot read it back.
    text = "\n".join(value.splitlines()) if "\r" in value else value
    return f"'{text}" if text.startswith(_FORMULA) else text
