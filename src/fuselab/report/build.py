"""From records and environments to the view that every output format shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fuselab.metrics import Record
from fuselab.model import Status
from fuselab.plan import CEILING
from fuselab.report import counters, tables
from fuselab.report.view import Environment, Section, Tile, View

# Facts of the environment that the header shows, where they exist, in this order.
_HEADER = (
    *("device", "gpu", "cpu", "cores", "driver"),
    *("torch", "triton", "cuda", "python", "fuseline", "commit"),
)


def build(
    records: Sequence[Record],
    environments: Sequence[Mapping[str, Any]],
    span: tuple[str, str] | None = None,
    title: str = "fuselab report",
) -> View:
    """Return the view of `metrics.records(...)`, `Store.environment()` and `Store.span()`."""
    rows = [row for row in records if row["role"] != CEILING]
    ceilings = [row for row in records if row["role"] == CEILING]
    counts = Counter(row["status"] for row in rows)
    places = list(dict.fromkeys(_place(row) for row in rows))
    cells = Counter(row["environment"] for row in records)
    return View(
        title=title,
        facts=_facts(rows, environments, span),
        tiles=_tiles(rows, ceilings, places),
        statuses=tuple((str(s), counts[str(s)]) for s in Status if counts[str(s)]),
        sections=tuple(
            _section(
                place,
                [row for row in rows if _place(row) == place],
                [row for row in ceilings if _place(row) == place],
            )
            for place in places
        ),
        unmeasured=tables.unmeasured(rows),
        accuracy=tables.accuracy(rows),
        costs=tables.costs(rows),
        proofs=tables.proofs(rows),
        counters=counters.table(rows),
        environments=tuple(
            Environment(
                str(env.get("id", "")),
                cells[env.get("id", "")],
                tuple(_flat({key: value for key, value in env.items() if key != "id"})),
            )
            for env in environments
        ),
    )


def _place(row: Record) -> tuple[str, str, str, str]:
    return row["op"], row["direction"], row["device"], row["layout"]


def _name(place: tuple[str, str, str, str]) -> str:
    op, direction, device, layout = place
    extra = "" if layout == "contiguous" else f", {layout}"
    return f"{op} {tables.DIRECTIONS.get(direction, direction)} on {device}{extra}"


def _section(
    place: tuple[str, str, str, str], rows: Sequence[Record], ceilings: Sequence[Record]
) -> Section:
    dtypes = tuple(dict.fromkeys(row["dtype"] for row in rows))
    parts = [
        (
            dtype,
            [row for row in rows if row["dtype"] == dtype],
            [row for row in ceilings if row["dtype"] == dtype],
        )
        for dtype in dtypes
    ]
    charts = (tables.chart(dtype, part, limit) for dtype, part, limit in parts)
    return Section(
        title=_name(place),
        summary=_summary(rows),
        times=tuple(tables.times(dtype, part) for dtype, part, _ in parts),
        charts=tuple(chart for chart in charts if chart),
        heat=tables.heat(rows),
    )


def _summary(rows: Sequence[Record]) -> tuple[str, ...]:
    problems: dict[tuple[str, ...], list[Record]] = {}
    for row in rows:
        problems.setdefault(tables.problem(row), []).append(row)
    winners = Counter(found["impl"] for part in problems.values() if (found := tables.best(part)))
    if not winners:
        return (f"None of the {len(problems)} problems has a time.",)
    (first, most), *others = winners.most_common()
    ranking = "".join(f", {impl} in {count}" for impl, count in others)
    sentences = [f"{first} is fastest in {most} of {len(problems)} problems{ranking}."]
    own = tables.best_own(rows)
    if speedups := [row["speedup_vs_eager"] for row in own if row["speedup_vs_eager"]]:
        sentences.append(
            f"The best own implementation is {tables.geometric_mean(speedups):.1f} times as fast "
            f"as eager (geometric mean of {len(speedups)} of {len(problems)} problems; "
            f"{min(speedups):.2f} to {max(speedups):.2f})."
        )
    if shares := [row["ceiling_share"] for row in own if row["ceiling_share"]]:
        largest = max(
            (row for row in own if row["ceiling_share"]), key=lambda row: row["ideal_bytes"]
        )
        sentences.append(
            f"It reaches {tables.percent(median(shares))} of the ceiling{_mixes(own)} in the "
            f"median problem "
            f"({len(shares)} of {len(problems)}), and {tables.percent(largest['ceiling_share'])} "
            f"in the largest ({largest['case']} {largest['dtype']}, {largest['impl']})."
        )
    return tuple(sentences)


def _mixes(rows: Sequence[Record]) -> str:
    found = ", ".join(dict.fromkeys(row["ceiling_mix"] for row in rows if row["ceiling_mix"]))
    return f" ({found} of the same bytes)" if found else ""


def _tiles(
    rows: Sequence[Record], ceilings: Sequence[Record], places: Sequence[tuple[str, str, str, str]]
) -> tuple[Tile, ...]:
    timed = sum(row["median_us"] is not None for row in rows)
    tiles = [Tile("cells with a number", f"{timed} / {len(rows)}")]
    for place in places:
        own = tables.best_own(row for row in rows if _place(row) == place)
        speedups = [row["speedup_vs_eager"] for row in own if row["speedup_vs_eager"]]
        if speedups:
            tiles.append(
                Tile(
                    _name(place),
                    f"{tables.geometric_mean(speedups):.1f}x",
                    f"eager / best own, {len(speedups)} problems",
                )
            )
    for row in ceilings:
        if row["op"] == CEILING and row["gbps"]:
            tiles.append(
                Tile(
                    f"{row['impl']} on {row['device']}",
                    f"{row['gbps']:.0f} GB/s",
                    f"fixed recipe, {tables.size(row['ideal_bytes'])} moved",
                )
            )
    return tuple(tiles)


def _facts(
    rows: Sequence[Record],
    environments: Sequence[Mapping[str, Any]],
    span: tuple[str, str] | None,
) -> tuple[tuple[str, str], ...]:
    ran = [
        tables.counted(len({row[key] for row in rows}), name)
        for key, name in (("op", "operator"), ("case", "case"), ("dtype", "dtype"))
    ]
    impls = tables.implementations(rows)
    facts = [("ran", f"{', '.join(ran)}; implementations {', '.join(impls)}")]
    if span:
        facts.append(("measured", " to ".join(dict.fromkeys(span))))
    if len(environments) > 1:
        facts.append(
            ("environments", f"{len(environments)}; ratios never compare one with another")
        )
    known = dict(_flat(environments[-1])) if environments else {}
    facts += [(name, known[name]) for name in _HEADER if name in known]
    if known.get("dirty") == "True":
        facts.append(("source", "differs from the commit"))
    facts += [(counters.NOT_MEASURED, line) for line in counters.not_measured(rows)]
    return tuple(facts)


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Return nested mappings as dotted names with their values as text."""
    if isinstance(value, Mapping):
        prefix = f"{name}." if name else ""
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{prefix}{key}")]
    if isinstance(value, (list, tuple)):
        return [(name, ", ".join(map(str, value)))]
    return [(name, tables.UNKNOWN if value is None else str(value))]
