"""From measurements and environments to the view that every output format shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fuselab.model import Measurement, Status
from fuselab.output.plain import counted
from fuselab.planning.plan import CEILING
from fuselab.records import columns, metrics
from fuselab.records.metrics import Record
from fuselab.report.sections import counters, details, headline, overview, tables
from fuselab.report.sections.standing import Standings
from fuselab.report.view import Environment, Section, View

# Facts of the environment that the report lists, where they exist, in this order.
_FACTS = (
    *("device", "gpu", "cpu", "cores", "driver"),
    *("torch", "triton", "cuda", "python", "fuseline", "commit", "native"),
)

Place = tuple[str, str, str, str]


def build(
    measured: Iterable[Measurement],
    environments: Sequence[Mapping[str, Any]],
    span: tuple[str, str] | None = None,
) -> View:
    """Return the view of `Store.measurements()`, `Store.environment()` and `Store.span()`."""
    measured = list(measured)
    records = metrics.records(measured)
    rows = [row for row in records if row["role"] != CEILING]
    ceilings = [row for row in records if row["role"] == CEILING]
    standings = Standings(measured, tables.implementations(rows))
    parts: dict[Place, list[Record]] = {}
    for row in rows:
        parts.setdefault(_place(row), []).append(row)
    named = [(_name(place), part) for place, part in parts.items()]
    many = len(named) > overview.FEW
    cells = Counter(row["environment"] for row in records)
    uncounted = (f"{counters.NOT_MEASURED}: {line}" for line in counters.not_measured(rows))
    return View(
        title=headline.title(rows, environments, span),
        notices=(*headline.notices(rows), *uncounted),
        facts=_facts(rows, environments, span),
        tiles=headline.tiles(
            rows,
            [row for row in ceilings if row["op"] == CEILING],
            () if many else named,
            standings,
        ),
        overview=overview.table(named, standings) if many else None,
        statuses=_statuses(rows),
        sections=tuple(_section(_name(place), part, standings) for place, part in parts.items()),
        unmeasured=details.unmeasured(rows),
        accuracy=details.accuracy(rows),
        costs=details.costs(rows),
        proofs=details.proofs(rows),
        counters=counters.table(rows, columns.of(measured)),
        environments=tuple(
            Environment(
                str(env.get("id", "")),
                cells[env.get("id", "")],
                tuple(_flat({key: value for key, value in env.items() if key != "id"})),
            )
            for env in environments
        ),
        records=tuple(records),
    )


def _statuses(rows: Sequence[Record]) -> tuple[tuple[str, int], ...]:
    counts = Counter(row["status"] for row in rows)
    return tuple((str(s), counts[str(s)]) for s in Status if counts[str(s)])


def _place(row: Record) -> Place:
    return row["op"], row["direction"], row["device"], row["layout"]


def _name(place: Place) -> str:
    op, direction, device, layout = place
    extra = "" if layout == "contiguous" else f", {layout}"
    return f"{op} {tables.DIRECTIONS.get(direction, direction)} on {device}{extra}"


def _section(title: str, rows: Sequence[Record], standings: Standings) -> Section:
    dtypes = tuple(dict.fromkeys(row["dtype"] for row in rows))
    parts = [(dtype, [row for row in rows if row["dtype"] == dtype]) for dtype in dtypes]
    return Section(
        title=title,
        summary=headline.summary(rows, standings),
        times=tuple(tables.times(dtype, part, standings) for dtype, part in parts),
    )


def _facts(
    rows: Sequence[Record],
    environments: Sequence[Mapping[str, Any]],
    span: tuple[str, str] | None,
) -> tuple[tuple[str, str], ...]:
    ran = [
        counted(len({row[key] for row in rows}), name)
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
    facts += [(name, known[name]) for name in _FACTS if name in known]
    if known.get("dirty") == "True":
        facts.append(("source", "differs from the commit"))
    return tuple(facts)


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Return nested mappings as dotted names with their values as text."""
    if isinstance(value, Mapping):
        prefix = f"{name}." if name else ""
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{prefix}{key}")]
    if isinstance(value, (list, tuple)):
        return [(name, ", ".join(map(str, value)))]
    return [(name, tables.UNKNOWN if value is None else str(value))]
