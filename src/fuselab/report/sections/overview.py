"""Of a run of many operators, a line each: what its sections say in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from fuselab.records.metrics import Record
from fuselab.report.sections.headline import Speedups
from fuselab.report.sections.standing import Standings, problem
from fuselab.report.sections.tables import UNKNOWN, best_own, heavy, label, percent
from fuselab.report.view import Column, Table, Value
from fuselab.statistics.comparison import Verdict

# So many sections are read sooner as sentences.
FEW = 3


def table(sections: Sequence[tuple[str, Sequence[Record]]], standings: Standings) -> Table:
    """Return a row a section: how the best own implementation stands beside others."""
    columns = (
        Column("operator", numeric=False),
        Column("problems"),
        Column("over eager", "eager / best own"),
        Column("over compile", "compile / best own"),
        Column("slower", "than compile, problems"),
        Column("of ceiling", "median"),
        Column("most often fastest", numeric=False),
    )
    rows = tuple(_row(name, rows, standings) for name, rows in sections)
    return Table("Best own implementation, geometric means", columns, rows)


def _row(name: str, rows: Sequence[Record], standings: Standings) -> tuple[Value, ...]:
    problems = {problem(row): row for row in rows}
    eager, compiled = Speedups(rows, standings), Speedups(rows, standings, "compile")
    decided = bool(compiled.ratios)
    shares = [row["ceiling_share"] for row in best_own(rows) if row["ceiling_share"]]
    bound = shares and not heavy(rows)
    return (
        Value(name),
        Value(str(len(problems))),
        *(Value(f"{one.mean:.2f}" if one.ratios else UNKNOWN) for one in (eager, compiled)),
        Value(str(compiled.counts[Verdict.SLOWER]) if decided else UNKNOWN),
        Value(percent(median(shares)) if bound else UNKNOWN),
        Value(_fastest([standings.of(row).fastest for row in problems.values()])),
    )


def _fastest(found: Sequence[tuple[str, ...]]) -> str:
    """Return who is the fastest, alone or beside others that are the same, in most problems."""
    counts = Counter(name for names in found for name in names)
    if not counts:
        return UNKNOWN
    (name, count), *_ = counts.most_common(1)
    return f"{label(name)}, in {count}"
