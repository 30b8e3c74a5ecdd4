"""From records to the report's tables and charts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from fuselab.metrics import Record
from fuselab.report.view import Chart, Column, Series, Table, Value

UNKNOWN = "n/a"
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
_SHORT = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_ROLE_ORDER = ("eager", "baseline", "native", "rival", "ours")


class Notes:
    """Footnotes of one table: equal texts share a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers) + 1)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._numbers)


def implementations(rows: Iterable[Record]) -> tuple[str, ...]:
    """Return the implementations: eager, baselines, native, rivals, then ours."""
    roles = {row["impl"]: row["role"] for row in rows}
    place = {role: index for index, role in enumerate(_ROLE_ORDER)}
    return tuple(sorted(roles, key=lambda impl: place.get(roles[impl], len(place))))


def cases(rows: Iterable[Record]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row["case"] for row in rows))


def best(rows: Iterable[Record]) -> Record | None:
    """Return the fastest record, or None where none has a time."""
    timed = [row for row in rows if row["median_us"] is not None]
    return min(timed, key=lambda row: row["median_us"], default=None)


def best_own(rows: Iterable[Record]) -> list[Record]:
    """Return the fastest record of our own implementations for each problem that has one."""
    problems: dict[tuple[str, ...], list[Record]] = {}
    for row in rows:
        if row["role"] == "ours":
            problems.setdefault(problem(row), []).append(row)
    return [found for own in problems.values() if (found := best(own))]


def problem(row: Record) -> tuple[str, ...]:
    return tuple(row[name] for name in ("op", "device", "layout", "direction", "dtype", "case"))


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def times(title: str, rows: Sequence[Record]) -> Table:
    """Return the seeds' table: a row a case, a column an implementation, in us, then speedup."""
    impls, notes = implementations(rows), Notes()
    own = [impl for impl in impls if any(r["impl"] == impl and r["role"] == "ours" for r in rows)]
    columns = [Column("case", numeric=False), *(Column(impl, "us") for impl in impls)]
    if own:
        columns += [
            Column("speedup", "eager / best own"),
            Column("of ceiling", "ceiling / best own"),
        ]
    lines = []
    for case in cases(rows):
        found = {row["impl"]: row for row in rows if row["case"] == case}
        fastest = best(found.values())
        nbytes = next((row["ideal_bytes"] for row in found.values() if row["ideal_bytes"]), None)
        line = [Value(case, hint=f"ideal traffic {size(nbytes)}")]
        line += [_time(found.get(impl), fastest, notes) for impl in impls]
        if own:
            line += _verdict(best(found[impl] for impl in own if impl in found))
        lines.append(tuple(line))
    return Table(title, tuple(columns), tuple(lines), _lead(rows), notes.texts)


def heat(rows: Sequence[Record]) -> Table | None:
    """Return speedup over eager, a row a case, a column an implementation and dtype.

    Implementations without any are left out; None if none is left.
    """
    rivals = [row for row in rows if row["role"] != "eager"]
    impls = implementations(row for row in rivals if row["speedup_vs_eager"])
    if not impls:
        return None
    dtypes = tuple(dict.fromkeys(row["dtype"] for row in rows))
    found = {(row["case"], row["impl"], row["dtype"]): row for row in rivals}
    pairs = [(impl, dtype) for impl in impls for dtype in dtypes]
    return Table(
        "Speedup over eager",
        (Column("case", numeric=False), *(Column(_SHORT.get(d, d)) for _, d in pairs)),
        tuple(
            (Value(case), *(_heat(found.get((case, *pair))) for pair in pairs))
            for case in cases(rows)
        ),
        spans=tuple((impl, len(dtypes)) for impl in impls),
    )


def chart(dtype: str, rows: Sequence[Record], ceilings: Sequence[Record]) -> Chart | None:
    """Return bandwidth over size of one dtype, or None where nothing has a bandwidth."""
    series = tuple(
        Series(impl, next(row["role"] for row in rows if row["impl"] == impl), points)
        for impl in implementations(rows)
        if (points := _points(row for row in rows if row["impl"] == impl))
    )
    if not series:
        return None
    shared = next((row for row in ceilings if row["gbps"] and row["peak_share"]), None)
    return Chart(
        dtype,
        series,
        Series("ceiling", "ceiling", _points(ceilings)),
        shared["gbps"] / shared["peak_share"] if shared else None,
    )


def unmeasured(rows: Sequence[Record]) -> Table:
    """Return what has no number, or a noisy one, and why."""
    counts = Counter(
        (row["op"], row["impl"], row["status"], row["reason"])
        for row in rows
        if row["status"] != "ok"
    )
    names = ("operator", "implementation", "status", "reason")
    return Table(
        "Cells without a good number",
        (*(Column(name, numeric=False, wide=name == "reason") for name in names), Column("cells")),
        tuple(
            (*(Value(text) for text in key), Value(str(count)))
            for key, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ),
    )


def accuracy(rows: Sequence[Record]) -> Table:
    """Return the worst error against fp64 of each implementation, direction and dtype."""
    numbers = (
        ("max_abs_error", "max error", "absolute"),
        ("rms_error", "RMS error", "absolute"),
        ("max_ulp", "max ULP", ""),
        ("eager_ratio", "of eager's", "max error / eager's"),
    )
    judged = [row for row in rows if row["max_abs_error"] is not None]
    return _by_implementation(
        "Accuracy against fp64, worst case",
        judged,
        [Column(name, detail) for _, name, detail in numbers],
        lambda part: [_worst(row[key] for row in part) for key, _, _ in numbers],
    )


def costs(rows: Sequence[Record]) -> Table:
    """Return host time (median over the cases) and memory of the largest case."""
    columns = [
        Column("host time", "us per call, median"),
        Column("in cache", "time / cold time, median"),
        Column("largest case", numeric=False),
        Column("ideal traffic"),
        Column("buffers"),
        Column("peak memory"),
        Column("copies"),
    ]

    def line(part: Sequence[Record]) -> list[Value]:
        host = [row["host_us"] for row in part if row["host_us"] is not None]
        hot = [row["hot_us"] / row["median_us"] for row in part if row["hot_us"] is not None]
        largest = max(part, key=lambda row: row["ideal_bytes"] or 0)
        return [
            Value(f"{median(host):.2f}" if host else UNKNOWN),
            Value(percent(median(hot)) if hot else UNKNOWN),
            Value(largest["case"]),
            *(Value(size(largest[key])) for key in ("ideal_bytes", "buffer_bytes", "peak_bytes")),
            Value(number(largest["copies"])),
        ]

    timed = [row for row in rows if row["median_us"] is not None]
    return _by_implementation("Host time and memory", timed, columns, line)


def proofs(rows: Sequence[Record]) -> Table:
    """Return what ran, one line for each distinct proof."""
    counted = ("launches", "copies", "graphs", "breaks", "recompiles")
    keys = ("op", "impl", "direction", "dtype", "kernels", *counted, "version")
    counts = Counter(
        tuple(row[key] for key in keys) for row in rows if row["median_us"] is not None
    )
    names = ("operator", "implementation", "direction", "dtype", "kernels")
    return Table(
        "Proof",
        (
            *(Column(name, numeric=False, wide=name == "kernels") for name in names),
            *(Column(name) for name in counted),
            Column("cells"),
        ),
        tuple(
            (
                Value(key[0]),
                Value(f"{key[1]} ({key[-1]})" if key[-1] else key[1]),
                Value(DIRECTIONS.get(key[2], key[2])),
                Value(key[3]),
                Value(key[4] or UNKNOWN),
                *(Value(number(value)) for value in key[5:-1]),
                Value(str(count)),
            )
            for key, count in counts.items()
        ),
    )


def size(nbytes: int | None) -> str:
    """Return a byte count in the largest binary unit that keeps it at least 1."""
    if nbytes is None:
        return UNKNOWN
    power = min(int(math.log2(nbytes)) // 10, 4) if nbytes > 0 else 0
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{nbytes / 1024**power:.1f}".removesuffix(".0") + f" {unit}"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def plain(text: str) -> str:
    """Return text on one line without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else " " for char in text)


def number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


def _time(row: Record | None, fastest: Record | None, notes: Notes) -> Value:
    if row is None:
        return Value("not run", "status", "no such cell in the store")
    if row["median_us"] is None:
        text = f"{row['status']}: {row['reason']}"
        return Value(row["status"], "status", row["reason"], notes.number(text))
    hint = f"95 % interval {row['ci_low_us']:.3f} to {row['ci_high_us']:.3f} us"
    hint += f", {row['samples']} samples"
    if row["gbps"]:
        hint += f", {row['gbps']:.0f} GB/s"
    noisy = notes.number(f"noisy: {row['reason']}") if row["status"] == "noisy" else None
    return Value(f"{row['median_us']:.3f}", "best" if row is fastest else "", hint, noisy)


def _verdict(own: Record | None) -> list[Value]:
    if own is None:
        return [Value(UNKNOWN, "status", "no own implementation has a time")] * 2
    speedup, share = own["speedup_vs_eager"], own["ceiling_share"]
    return [
        Value(f"{speedup:.3f}" if speedup else UNKNOWN, hint=f"eager / {own['impl']}"),
        Value(percent(share), hint=f"ceiling ({own['ceiling_mix']}) / {own['impl']}"),
    ]


def _lead(rows: Sequence[Record]) -> str:
    own = best_own(rows)
    parts = [counted(len(cases(rows)), "case")]
    if speedups := [row["speedup_vs_eager"] for row in own if row["speedup_vs_eager"]]:
        parts.append(f"{geometric_mean(speedups):.1f}x eager")
    if shares := [row["ceiling_share"] for row in own if row["ceiling_share"]]:
        parts.append(f"{percent(median(shares))} of the ceiling")
    return " · ".join(parts)


def _heat(row: Record | None) -> Value:
    speedup = row["speedup_vs_eager"] if row else None
    if row is None or speedup is None:
        return Value("·", "status", f"{row['status']}: {row['reason']}" if row else "not run")
    return Value(
        _figures(speedup), "heat", f"{row['impl']}, {row['dtype']}", heat=math.log2(speedup)
    )


def _figures(speedup: float) -> str:
    if speedup < 0.1:
        return f"{speedup:.1g}"
    return f"{speedup:.2f}" if speedup < 10 else f"{speedup:.1f}"


def _points(rows: Iterable[Record]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted((row["ideal_bytes"], row["gbps"]) for row in rows if row["gbps"]))


def _worst(values: Iterable[float | None]) -> Value:
    known = [value for value in values if value is not None]
    bad = next((value for value in known if math.isnan(value)), None)
    return Value(number(max(known, default=None) if bad is None else bad))


def _by_implementation(
    title: str,
    rows: Sequence[Record],
    columns: Sequence[Column],
    line: Callable[[Sequence[Record]], list[Value]],
) -> Table:
    keys = ("op", "direction", "dtype", "impl")
    parts: dict[tuple[str, ...], list[Record]] = {}
    for impl in implementations(rows):
        for row in (row for row in rows if row["impl"] == impl):
            parts.setdefault(tuple(row[key] for key in keys), []).append(row)
    order = {
        key: index
        for index, key in enumerate(
            dict.fromkeys(tuple(row[name] for name in keys[:3]) for row in rows)
        )
    }
    names = ("operator", "direction", "dtype", "implementation")
    return Table(
        title,
        (*(Column(name, numeric=False) for name in names), *columns, Column("cases")),
        tuple(
            (
                Value(key[0]),
                Value(DIRECTIONS.get(key[1], key[1])),
                Value(key[2]),
                Value(key[3]),
                *line(part),
                Value(str(len(part))),
            )
            for key, part in sorted(parts.items(), key=lambda item: order[item[0][:3]])
        ),
    )
